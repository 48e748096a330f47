from __future__ import annotations

import json
import os
import shutil
import subprocess
import time

import pytest
from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.tools import search
from hermes_nb.tools.workspace import Workspace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cpu import within
from tests.patience import SOON
from tests.tools.support import context_for, run, stopped

RIPGREP = pytest.param(
    True, marks=pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
)


def make(root, tree):
    """Write files: text, bytes, or None for a directory."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture(params=[RIPGREP, False], ids=["ripgrep", "own"])
def find(request, tmp_path):
    tool = search.search(Workspace(root=tmp_path / "work"), ripgrep=request.param)
    (tmp_path / "work").mkdir()

    def call(pattern, **arguments):
        return run(tool, pattern=pattern, **arguments)

    call.root = tmp_path / "work"
    call.tool = tool
    return call


def test_matches_are_sorted_and_told_with_their_line(find):
    make(find.root, {"b.txt": "x\nfoo\n", "a/z.txt": "foo bar\nno\nfoo", "c.txt": "nothing"})
    assert find("foo") == "a/z.txt:1: foo bar\na/z.txt:3: foo\nb.txt:2: foo"
    assert find("^foo$") == "a/z.txt:3: foo\nb.txt:2: foo"
    assert find("FOO", ignore_case=True).count("\n") == 2
    assert find("FOO") == "no matches for 'FOO' in 3 files"
    assert find("foo", path="a") == "a/z.txt:1: foo bar\na/z.txt:3: foo"
    assert find("foo", path="b.txt") == "b.txt:2: foo"
    assert find("foo", glob="*.md") == "no matches for 'foo' in 0 files"


def test_context_lines(find):
    make(find.root, {"a": "1\n2\nfoo\n4\n5\n6\n7\nfoo\nfoo\n"})
    assert find("foo", context=1) == ("a-2- 2\na:3: foo\na-4- 4\n--\na-7- 7\na:8: foo\na:9: foo")
    assert find("foo", context=1, limit=1) == (
        "a-2- 2\na:3: foo\na-4- 4\n[2 more matches; narrow the pattern or the path]"
    )


def test_the_limit_counts_what_is_left_out(find):
    make(find.root, {f"f{n}": "foo\n" * 10 for n in range(5)})
    shown = find("foo", limit=12).splitlines()
    assert len(shown) == 13
    assert shown[-1] == "[38 more matches; narrow the pattern or the path]"


def test_no_end_of_matches(find):
    make(find.root, {f"f{n:02}": "foo\n" * 1500 for n in range(30)})
    shown = find("foo", limit=1)
    assert shown == "f00:1: foo\n[at least 9,999 more matches; narrow the pattern or the path]"


def test_what_is_skipped(find):
    make(
        find.root,
        {
            ".hidden": "foo",
            ".git/x": "foo",
            "bin": b"foo\0bar",
            "late": b"foo\n" + b"x" * 200_000 + b"\0",
            "id_rsa": "foo",
            "out/x": "foo",
            "keep/x.log": "foo",
            "keep/y.log": "foo",
            "sub/z.tmp": "foo",
            "z.tmp": "foo",
            ".gitignore": "out/\n*.log\n!keep/y.log\n",
            "sub/.gitignore": "*.tmp\n",
        },
    )
    (find.root / "link").symlink_to("z.tmp")
    os.mkfifo(find.root / "pipe")
    assert find("foo") == "keep/y.log:1: foo\nz.tmp:1: foo"
    assert find("foo", path="out") == "out/x:1: foo"
    with pytest.raises(ToolError, match="protected"):
        find("foo", path="id_rsa")


def test_what_is_inside_may_be_kept_where_the_directory_is_not_left_out(find):
    make(find.root, {"a/x": "foo", "a/keep": "foo", "b/keep": "foo"})
    (find.root / ".gitignore").write_text("a/**\n!a/keep\nb/\n!b/keep\n", encoding="utf-8")
    assert find("foo") == "a/keep:1: foo"


def test_a_kept_directory_keeps_nothing_inside(find):
    make(find.root, {"sub/keep/x.log": "foo", "sub/keep/.h": "foo", "sub/keep/y": "foo"})
    (find.root / ".gitignore").write_text("*.log\n", encoding="utf-8")
    (find.root / "sub" / ".gitignore").write_text("!keep\n", encoding="utf-8")
    assert find("foo") == "sub/keep/y:1: foo"


def test_rules_above_the_directory_and_nested_repositories(find):
    make(
        find.root.parent,
        {".gitignore": "*.a\n", "work/x.a": "foo", "work/x.b": "foo", "work/repo/x.a": "foo"},
    )
    (find.root / "repo" / ".git").mkdir()
    assert find("foo") == "repo/x.a:1: foo\nx.b:1: foo"


def test_text_as_it_comes(find):
    make(find.root, {"bom": b"\xef\xbb\xbffoo\r\n", "latin": b"foo caf\xe9\n"})
    make(find.root, {"wide": "foo é\n".encode("utf-16"), "ansi": "foo \x1b[31m\u202e\n"})
    make(find.root, {"na\nme\x1b[0m": "foo"})
    assert find("^foo") == (
        "ansi:1: foo \\x1b[31m\\u202e\nbom:1: foo\nlatin:1: foo caf\ufffd\n"
        "na\\nme\\x1b[0m:1: foo\nwide:1: foo é"
    )
    assert find("foo$") == "bom:1: foo\nna\\nme\\x1b[0m:1: foo"


def test_long_lines_are_cut_where_the_match_is(find):
    make(find.root, {"a": "é" * 5000 + "foo" + "x" * 5000, "b": "foo" + "x" * 5000})
    first, second = find("foo").splitlines()
    assert first == "a:1: …" + "é" * 60 + "foo" + "x" * 237 + "…"
    assert second == "b:1: foo" + "x" * 297 + "…"


def test_files_by_name(find):
    make(find.root, {"a.py": "", "src/b.py": "", "src/deep/c.js": "", "d.txt": "", "x.ipynb": ""})
    assert find("", glob="*.py") == "a.py\nsrc/b.py"
    assert find("", glob="*.{py,js}") == "a.py\nsrc/b.py\nsrc/deep/c.js"
    assert find("", glob="src/**") == "src/b.py\nsrc/deep/c.js"
    assert find("", glob="src/*.py") == "src/b.py"
    assert find("", glob="!*.py") == "d.txt\nsrc/deep/c.js\nx.ipynb"
    assert find("", glob="*.py", path="src") == "src/b.py"
    assert find("", glob="*", limit=2) == "a.py\nd.txt\n[3 more files; narrow the glob]"
    assert find("", glob="nope") == "no files match"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        *(("(foo", "missing ), unterminated subpattern at position 0"), ("[a", "at position 0")),
        ("a{2,1}", "min repeat greater than max repeat at position 2"),
        *(("[[:alpha:]]", "Possible nested set"), ("a\nb", "one line")),
        *(("x" * 2000, "at most 1000"), ("(" * 900 + ")" * 900, "one line of at most")),
    ],
)
def test_what_is_no_pattern(find, pattern, said):
    with pytest.raises(ToolError) as caught:
        find(pattern)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": ""}, "give a `pattern`"),
        *(
            ({"pattern": "x", "glob": glob}, "not a usable glob")
            for glob in ("*a*b*c*d*", "**/" * 20, "#")
        ),
        ({"pattern": "x", "path": "nope"}, "no file"),
        ({"pattern": "x", "path": ".."}, "outside"),
        ({"pattern": "\ud800"}, "cannot be used"),
    ],
)
def test_what_is_no_search(find, arguments, said):
    with pytest.raises(ToolError, match=said):
        find(**arguments)


def test_patterns_that_only_python_understands(find):
    make(find.root, {"a": "foobar\nfoobaz\nxx\n"})
    assert find("foo(?=baz)") == "a:2: foobaz"
    assert find(r"(x)\1") == "a:3: xx"
    assert find(r"(?i)FOOBAR\Z") == "a:1: foobar"
    assert find(r"\<") == r"no matches for '\\<' in 1 files"


def test_a_hostile_pattern_is_stopped(find, monkeypatch):
    monkeypatch.setattr(search, "TIME_LIMIT", 1.0)
    make(find.root, {"a": "a" * 5000 + "b\n", "b": "(?=x)"})
    started = time.monotonic()
    shown = find(r"(?=a)(a|aa)+$")
    assert time.monotonic() - started < SOON
    assert "not everything was searched" in shown


def test_a_hostile_gitignore_is_left_out(find):
    make(find.root, {".gitignore": "*a*a*a*a*a*a*a*a*b\n[\n", "a" * 200: "foo"})
    assert within(5, find, "foo", threads=True).endswith(":1: foo")


def test_a_stop_ends_it(find):
    make(find.root, {"a": "foo"})
    with pytest.raises(TurnInterrupted):
        run(find.tool, within=context_for(find.tool, stop=stopped()), pattern="foo")


def test_many_files_are_searched_in_runs(find, monkeypatch):
    monkeypatch.setattr(search, "_FILES_A_RUN", 7)
    make(find.root, {f"{n:03}": f"foo {n}" for n in range(40)})
    assert find("foo") == "\n".join(f"{n:03}:1: foo {n}" for n in range(40))


# both searches are one


NAMES = st.sampled_from(["a", "b.py", "c.log", ".h", "build", "é x", "x{1}"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.text(st.sampled_from("abAB .-{é\t"), max_size=8)
CONTENTS = st.tuples(
    st.lists(LINES, max_size=4), st.sampled_from(["\n", "\r\n"]), st.booleans()
).map(lambda parts: parts[1].join(parts[0]) + parts[1] * parts[2])
RULE = """*.log !c.log build/ /a a/ !a b.* **/c.log a/** !.h .h a/b.py #x * !*/ !b.py [ab]* ?
é* \\!a build"""
RULES = st.lists(st.sampled_from([*RULE.split(), ""]), max_size=4).map("\n".join)
TREES = st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=8)
PATTERN = r"""a ^a b$ a.b [^a] A|b (a)(b) a* a+b? \. \bab \w+ \d \s x{1} é ^$ (?i)ab a{2} \{ -"""
PATTERNS = st.sampled_from([*PATTERN.split(), ""])


def plant(root, tree, rules, nested, repository):
    for name, content in tree.items():
        path = root / name
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    (root / ".gitignore").write_text(rules, encoding="utf-8")
    for place in ("a", "build"):
        if (root / place).is_dir():
            (root / place / ".gitignore").write_text(nested, encoding="utf-8")
            if repository:
                (root / place / ".git").mkdir(exist_ok=True)
            break


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    tree=TREES,
    rules=RULES,
    nested=RULES,
    repository=st.booleans(),
    pattern=PATTERNS,
    path=st.sampled_from([".", "a", "build", "b.py"]),
    glob=st.sampled_from([None, "*.py", "!*.log", "a/**", "*"]),
    context=st.integers(0, 1),
    ignore_case=st.booleans(),
    limit=st.integers(1, 5),
)
def test_both_searches_say_the_same(
    tmp_path_factory, path, tree, rules, nested, repository, **query
):
    root = tmp_path_factory.mktemp("tree")
    plant(root, tree, rules, nested, repository)
    answers = []
    for ripgrep in (True, False):
        tool = search.search(Workspace(root=root), ripgrep=ripgrep)
        try:
            answers.append(run(tool, path=path, **query))
        except ToolError as error:
            answers.append(f"ToolError: {error}")
    shutil.rmtree(root)
    assert answers[0] == answers[1]


def test_the_own_search_is_what_runs_without_ripgrep(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("foo", encoding="utf-8")
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(search.search(Workspace(root=tmp_path)), pattern="foo") == "a:1: foo"


def sent(kind, **data):
    """Return a line as ripgrep writes it."""
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


END = sent("end", path={"text": "a"}, binary_offset=None)


def test_a_sink_has_enough_after_the_count_limit():
    kept = search.Results(1, str)
    line = sent("match", lines={"text": "x"}, line_number=1, submatches=[])
    assert not kept.feed(line * search.COUNT_LIMIT + END)
    assert kept.omitted == search.COUNT_LIMIT - 1


def test_a_line_in_many_pieces_is_joined_once():
    data = sent("match", lines={"text": "x" * 20_000_000}, line_number=1, submatches=[])

    def feed():
        found = search.Results(10, str)
        for start in range(0, len(data), 2_000):
            assert found.feed(data[start : start + 2_000])
        assert found.feed(b"rg: a complaint\n" + END)
        return found.matches

    assert within(2, feed) == 1


def test_a_large_tree_is_quick(tmp_path):
    for n in range(100):
        (tmp_path / f"d{n}").mkdir()
        for m in range(30):
            (tmp_path / f"d{n}" / f"f{m}").write_text("x\n" * 10, encoding="utf-8")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    started = time.monotonic()
    for ripgrep in (False, True):
        tool = search.search(Workspace(root=tmp_path), ripgrep=ripgrep)
        assert run(tool, pattern="zz") == "no matches for 'zz' in 3,000 files"
    assert time.monotonic() - started < SOON


def test_a_line_of_very_many_matches_is_one(find):
    make(find.root, {"min.js": "x=1;" * 250_000, "b.js": b"\xe9x\xe9x=1\xe9\n"})
    found = within(3, find, "x", threads=True)
    assert [line[:12] for line in found.splitlines()] == ["b.js:1: \ufffdx\ufffdx", "min.js:1: x="]


def test_a_file_whose_name_is_no_text_is_named(find):
    (find.root / os.fsdecode(b"caf\xe9.txt")).write_text("foo\n", encoding="utf-8")
    assert find("foo") == "caf\\udce9.txt:1: foo"


def test_much_context_around_many_matches_costs_what_is_shown():
    def feed():
        found = search.Results(1_000, str, context=20)
        for n in range(1, 41_001):
            kind = "match" if n % 41 == 0 else "context"
            found.feed(sent(kind, lines={"text": "x"}, line_number=n, submatches=[]))
        found.feed(END)
        return found.matches, len(found.lines)

    assert within(2, feed) == (1_000, 41_000 - 20)

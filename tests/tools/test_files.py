from __future__ import annotations

import os
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from hermes_nb.core.calls import as_output
from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.patching import patched
from hermes_nb.tools.files import files
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within
from tests.tools.support import context_for, python, run, stopped


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def use(root):
    """Return a function that runs one of the file tools."""
    tools = files(root)

    def call(name, **arguments):
        return as_output(run(tools.get(name), **arguments)).text

    return call


def refused(use, name, **arguments):
    with pytest.raises(ToolError) as caught:
        use(name, **arguments)
    return str(caught.value)


# reading


def test_lines_are_numbered(root, use):
    (root / "a.txt").write_text("one\ntwo\n\nfour", encoding="utf-8")
    assert use("read_file", path="a.txt") == "1\tone\n2\ttwo\n3\t\n4\tfour"
    assert use("read_file", path=str(root / "a.txt"), offset=4) == "4\tfour"
    assert use("read_file", path="a.txt", offset=9) == (
        "[line 9 is past the end: the file has 4 lines]"
    )


def test_a_cut_says_how_to_go_on(root, use):
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 51)), encoding="utf-8")
    shown = use("read_file", path="a.txt", offset=11, limit=10)
    assert shown.startswith("11\tline 11\n")
    assert shown.endswith("20\tline 20\n[lines 11 to 20 of 50; continue with offset=21]")
    assert use("read_file", path="a.txt", offset=41, limit=10).endswith("50\tline 50")
    (root / "many.txt").write_text(f"{'y' * 999}\n" * 100, encoding="utf-8")
    shown = use("read_file", path="many.txt")
    assert len(shown) < 42_000
    assert shown.endswith("[lines 1 to 40 of 100; continue with offset=41]")


def test_lines_over_the_limit_are_cut(root, use):
    lines = [b"x" * 2000 + b"\r", b"x" * 2001, b"x" * 5000, b"end"]
    (root / "a.txt").write_bytes(b"\n".join(lines))
    assert use("read_file", path="a.txt").split("\n") == [
        "1\t" + "x" * 2000,
        "2\t" + "x" * 2000 + "[... 1 more characters]",
        "3\t" + "x" * 2000 + "[... 3,000 more characters]",
        "4\tend",
    ]


def test_encodings(root, use):
    (root / "bom.txt").write_bytes(b"\xef\xbb\xbfh\xc3\xa9\r\n")
    (root / "latin.txt").write_bytes(b"h\xe9\n")
    (root / "wide.txt").write_bytes("hé\n".encode("utf-16"))
    (root / "bad.txt").write_bytes(b"a" * 70_000 + b"\n\xff\n")
    assert use("read_file", path="bom.txt") == "1\thé"
    assert use("read_file", path="latin.txt") == "1\thé\n[read as latin-1]"
    assert use("read_file", path="wide.txt") == "1\thé\n[read as utf-16-le]"
    assert use("read_file", path="bad.txt").endswith("\n2\t\ufffd")
    (root / "empty.txt").touch()
    assert use("read_file", path="empty.txt") == "[the file is empty]"


def test_binary_files_are_named_not_dumped(root, use):
    (root / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0" + b"\0" * 1500)
    (root / "x.bin").write_bytes(bytes(range(256)))
    (root / "x.dat").write_bytes(bytes(range(1, 32)) * 9 + b"\xff\xfe\xfd")
    said = refused(use, "read_file", path="x.png")
    assert "binary (PNG image, 1.5 kB)" in said
    assert "binary" in refused(use, "read_file", path="x.bin")
    assert "binary" in refused(use, "read_file", path="x.dat")


def test_what_is_not_a_file(root, use):
    os.mkfifo(root / "pipe")
    (root / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        refused(use, "read_file", path="s")
    assert "a pipe" in refused(use, "read_file", path="pipe")
    assert "list_files" in refused(use, "read_file", path="d")
    assert "pipe" in refused(use, "write_file", path="pipe", content="")
    assert "directory" in refused(use, "write_file", path="d", content="")
    assert "a part of the path is a file" in refused(use, "read_file", path="pipe/x")


def test_a_missing_file_gets_the_nearest_names(root, use):
    (root / "data").mkdir()
    (root / "data" / "measurements.csv").touch()
    said = refused(use, "read_file", path="data/mesurements.csv")
    assert "no file 'mesurements.csv' in data/" in said
    assert "nearest: measurements.csv" in said
    assert "list_files" in said
    assert "no file 'dato' in ./; nearest: data" in refused(use, "read_file", path="dato/x.csv")


def test_a_large_file_is_streamed(root):
    with (root / "large.txt").open("wb") as file:
        for _ in range(80):
            file.write((b"x" * 99 + b"\n") * 10_000)
    code = f"""
import resource
from pathlib import Path
from tests.tools.support import run
from hermes_nb.tools.files import files
tool = files(Path({str(root)!r})).get("read_file")
run(tool, path="large.txt", limit=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(run(tool, path="large.txt", offset=700_000, limit=1))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    out = python(code)
    line, note, grown = out.stdout.splitlines()
    assert line.startswith("700000\tx")
    assert (
        note == "[truncated after line 700,000; the file has 80.0 MB; continue with offset=700001]"
    )
    assert int(grown) < 10_000


def test_a_stop_ends_a_long_read(root):
    (root / "a.txt").write_text("x\n" * 10, encoding="utf-8")
    tool = files(root).get("read_file")
    with pytest.raises(TurnInterrupted):
        run(tool, within=context_for(tool, stop=stopped()), path="a.txt")


# where paths may lead


@pytest.mark.parametrize(
    "path", ["../outside.txt", "/etc/hostname", "link/x", "hole", "a/../../outside.txt", "~/x"]
)
def test_outside_is_refused(root, use, path):
    (root.parent / "outside.txt").write_text("x", encoding="utf-8")
    (root / "link").symlink_to("/etc")
    (root / "hole").symlink_to("../outside.txt")
    assert "outside the working directory" in refused(use, "read_file", path=path)
    assert "outside the working directory" in refused(use, "write_file", path=path, content="")
    assert "outside the working directory" in refused(use, "list_files", path=path)


def test_inside_is_fine_however_it_is_spelled(root, use):
    (root / "d").mkdir()
    (root / "d" / "a.txt").write_text("x", encoding="utf-8")
    (root / "link").symlink_to("d")
    for path in ("d/a.txt", "d/../d/a.txt", "link/a.txt", str(root / "d/a.txt"), "./d//a.txt"):
        assert use("read_file", path=path) == "1\tx"
    (root / "~$tmp.txt").write_text("y", encoding="utf-8")
    assert use("read_file", path="~$tmp.txt") == "1\ty"


@pytest.mark.parametrize("path", ["", " ", "a\0b"])
def test_what_is_no_path(use, path):
    assert "is not a path" in refused(use, "read_file", path=path)


def test_seams_open_single_places(root, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "x.txt").write_text("x", encoding="utf-8")
    tools = files(root, also_readable=(kept,))
    assert run(tools.get("read_file"), path=str(kept / "x.txt")) == "1\tx"
    with pytest.raises(ToolError, match="outside"):
        run(tools.get("write_file"), path=str(kept / "x.txt"), content="")
    tools = files(root, allowed=lambda path: path == kept / "x.txt")
    run(tools.get("write_file"), path=str(kept / "x.txt"), content="y")
    assert (kept / "x.txt").read_text(encoding="utf-8") == "y"


def test_a_deleted_working_directory_is_said_clearly(root, use):
    root.rmdir()
    for name, arguments in [
        ("read_file", {"path": "a"}),
        ("write_file", {"path": "a", "content": ""}),
        ("list_files", {}),
        ("search_files", {"pattern": "x"}),
    ]:
        assert "no longer exists" in refused(use, name, **arguments)


@pytest.mark.parametrize(
    "path",
    [".env", "sub/.env.local", ".ssh/id_rsa", ".git-credentials", "ENV/../.ENV", "x.pem", "a_link"],
)
def test_secrets_are_neither_read_nor_written(root, use, path):
    for name in ("sub", ".ssh", "ENV"):
        (root / name).mkdir()
    (root / "a_link").symlink_to(".env")
    assert "protected" in refused(use, "read_file", path=path)
    assert "protected" in refused(use, "write_file", path=path, content="")
    assert "protected" in refused(use, "patch", path=path, old="a", new="b")


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".mcp.json", ".jupyter/x.py"])
def test_what_runs_by_itself_is_not_written(root, use, path):
    (root / path).parent.mkdir(exist_ok=True, parents=True)
    (root / path).write_text("x", encoding="utf-8")
    assert use("read_file", path=path) == "1\tx"
    assert "protected" in refused(use, "write_file", path=path, content="")


def test_write_creates_and_replaces(root, use):
    assert use("write_file", path="new/deep/a.txt", content="x\ny\n") == (
        "created new/deep/a.txt (2 lines, 4 B)"
    )
    assert use("write_file", path="new/deep/a.txt", content="z") == (
        "replaced new/deep/a.txt (1 lines, 1 B)"
    )
    assert (root / "new/deep/a.txt").read_bytes() == b"z"


def test_write_keeps_mode_line_ends_and_mark(root, use):
    path = root / "a.sh"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    path.chmod(0o750)
    use("write_file", path="a.sh", content="c\nd\n")
    assert path.read_bytes() == b"\xef\xbb\xbfc\r\nd\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


def test_what_is_not_written(root, use):
    assert "cannot be written" in refused(use, "write_file", path="a", content="\ud800")
    (root / "nb.ipynb").write_text("{}", encoding="utf-8")
    (root / "kept.txt").write_text("{}", encoding="utf-8")
    (root / "kept.txt").chmod(0o444)
    for path, said in (("nb.ipynb", "notebook tools"), ("kept.txt", "write-protected")):
        assert said in refused(use, "write_file", path=path, content="")
        assert said in refused(use, "patch", path=path, old="{", new="[")
        assert (root / path).read_text(encoding="utf-8") == "{}"


def test_a_full_disk_is_said(root, use):
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "x", root], check=False
    ).returncode:
        pytest.skip("no tmpfs may be mounted here")
    try:
        use("write_file", path="a", content="x")
        assert "the disk is full" in refused(use, "write_file", path="a", content="x" * 200_000)
        assert (root / "a").read_text(encoding="utf-8") == "x"
        assert [path.name for path in root.iterdir()] == ["a"]
    finally:
        subprocess.run(["umount", root], check=True)


def test_a_read_only_directory_is_said(open_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = f"""
import os, sys
from pathlib import Path
sys.modules["rfc3987_syntax"] = None  # as in conftest.py
from tests.tools.support import run
from hermes_nb.tools.files import files
tool = files(Path({str(open_path)!r})).get("write_file")
tool.check({{}})  # imports and reads what nobody may not
run(tool, path="b", content="x")
os.setuid(65534)
try:
    run(tool, path="a", content="x")
except Exception as error:
    print(type(error).__name__, error)
"""
    out = python(code)
    assert out.stdout.startswith("ToolError 'a': permission denied"), out.stdout + out.stderr


# patching


def test_patch_replaces_one_exact_passage(root, use):
    (root / "a.py").write_bytes(b"def f():\r\n    return 1\r\n\r\nx = 2\r\n")
    (root / "a.py").chmod(0o755)
    shown = use("patch", path="a.py", old="    return 1\n\nx", new="    return 2\n\ny")
    assert (root / "a.py").read_bytes() == b"def f():\r\n    return 2\r\n\r\ny = 2\r\n"
    assert stat.S_IMODE((root / "a.py").stat().st_mode) == 0o755
    assert shown == (
        "patched a.py\n--- a.py\n+++ a.py\n@@ -1,4 +1,4 @@\n def f():\n-    return 1\n"
        "+    return 2\n \n-x = 2\n+y = 2"
    )


def test_patch_says_where_the_matches_are(root, use):
    (root / "a").write_text("x\ny\nx\nz\nx\n", encoding="utf-8")
    said = refused(use, "patch", path="a", old="x\n", new="w\n")
    assert "occurs 3 times, at lines 1, 3, 5" in said
    assert "in 3 places" in use("patch", path="a", old="x\n", new="w\n", replace_all=True)
    assert (root / "a").read_text(encoding="utf-8") == "w\ny\nw\nz\nw\n"


def test_patch_shows_the_nearest_passage(root, use):
    text = "".join(f"line {n}\n" for n in range(30)) + "def total(values):\n\treturn sum(values)\n"
    (root / "a").write_text(text, encoding="utf-8")
    said = refused(
        use, "patch", path="a", old="def total(values):\n    return sum(values)\n", new=""
    )
    assert "only white space differs" in said
    assert "31\tdef total(values):\n32\t\treturn sum(values)" in said
    said = refused(use, "patch", path="a", old="def totals(values):", new="")
    assert "31\tdef total(values):" in said
    assert "nor anything similar" in refused(use, "patch", path="a", old="@@@@", new="")
    said = refused(use, "patch", path="a", old="1\tline 0\n2\tline 1", new="")
    assert "line numbers of read_file" in said


def test_patch_refuses_what_makes_no_sense(root, use):
    (root / "a").write_text("x", encoding="utf-8")
    (root / "b").write_bytes(b"x\0y")
    assert "empty" in refused(use, "patch", path="a", old="", new="y")
    assert "the same" in refused(use, "patch", path="a", old="x", new="x")
    assert "binary" in refused(use, "patch", path="b", old="x", new="y")
    assert "no file" in refused(use, "patch", path="c", old="x", new="y")


def test_patch_keeps_the_encoding(root, use):
    (root / "latin").write_bytes(b"caf\xe9 1\n")
    use("patch", path="latin", old="1", new="ü")
    assert (root / "latin").read_bytes() == b"caf\xe9 \xfc\n"
    assert "cannot be written in latin-1" in refused(use, "patch", path="latin", old="ü", new="€")
    (root / "wide").write_bytes("a\n".encode("utf-16"))
    use("patch", path="wide", old="a", new="b")
    assert (root / "wide").read_bytes() == "b\n".encode("utf-16")


def test_a_patch_in_a_large_file_is_quick_and_its_diff_short(root, use):
    (root / "a").write_text("same line\n" * 200_000 + "x\n" + "same line\n" * 200_000, "utf-8")
    shown = use("patch", path="a", old="x\n", new="y\n")
    assert "@@ -199999,5 +199999,5 @@" in shown
    assert len(shown) < 500
    shown = use("patch", path="a", old="same", new="other", replace_all=True)
    assert "in 400000 places" in shown
    assert len(shown) < 5000


TEXT = st.text(st.sampled_from("ab \n\r\t"), max_size=30)


@given(TEXT, st.text(st.sampled_from("ab \n"), min_size=1, max_size=4), TEXT, st.booleans())
def test_a_patch_changes_nothing_but_the_passage(text, old, new, replace_all):
    unix = text.replace("\r\n", "\n")
    wanted = new.replace("\r\n", "\n")
    count = unix.count(old)
    try:
        result = patched(text, old, new, name="n", replace_all=replace_all)
    except ToolError:
        assert count == 0 or old == wanted or (count > 1 and not replace_all)
        return
    assert result.count == count
    # A lone CR may end up in front of an LF, so the comparison leaves CRs out.
    assert result.text.replace("\r", "") == unix.replace(old, wanted).replace("\r", "")
    if "\r" not in text + new:
        assert "\r" not in result.text
    at = unix.index(old)
    begin = next(n for n in range(len(text) + 1) if text[:n].replace("\r\n", "\n") == unix[:at])
    assert result.text.startswith(text[:begin])
    assert result.diff.startswith("--- n\n+++ n")


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=8), st.data())
def test_crlf_files_stay_crlf(lines, data):
    text = "\r\n".join(lines) + "\r\n"
    at = data.draw(st.integers(0, len(lines) - 1))
    old = "\n".join(lines[at : at + 2]) + "\n"
    new = "c\nd\n"
    if text.replace("\r\n", "\n").count(old) != 1:
        return
    result = patched(text, old, new, name="n").text
    assert result.count("\n") == result.count("\r\n")
    assert result.replace("\r\n", "\n") == text.replace("\r\n", "\n").replace(old, new)


# listing


def test_listing(root, use):
    (root / "src").mkdir()
    (root / "src" / "a.py").write_text("x" * 1234, encoding="utf-8")
    (root / "build").mkdir()
    (root / ".git").mkdir()
    (root / ".git" / "config").touch()
    (root / ".hidden").touch()
    (root / "b.txt").write_text("x", encoding="utf-8")
    (root / "link").symlink_to("b.txt")
    (root / ".gitignore").write_text("build/\n*.log\n", encoding="utf-8")
    (root / "x.log").touch()
    assert use("list_files") == (
        "src/\nb.txt  1 B\nlink -> b.txt\n[not shown: 3 hidden, 2 ignored]"
    )
    assert "src/\n  a.py  1.2 kB\n" in use("list_files", depth=2)
    everything = use("list_files", depth=3, hidden=True, ignored=True)
    assert everything.splitlines() == [
        *(".git/", "build/", "src/", "  a.py  1.2 kB", ".gitignore  13 B", ".hidden  0 B"),
        *("b.txt  1 B", "link -> b.txt", "x.log  0 B"),
    ]
    assert use("list_files", path="build") == "(empty)"
    assert "is a file" in refused(use, "list_files", path="b.txt")
    assert "nearest: src" in refused(use, "list_files", path="srk")


def test_listing_is_capped(root, use):
    for n in range(600):
        (root / f"{n:03}").touch()
    lines = use("list_files").splitlines()
    assert len(lines) == 501
    assert lines[-1] == "[not shown: 100 more]"


@pytest.mark.parametrize("name", ["read_file", "write_file", "patch", "list_files", "search_files"])
@pytest.mark.parametrize("path", ["\ud800", "a" * 300, "a/" * 3_000, "file/below", "loop"])
def test_a_path_that_cannot_be_is_said_in_words(root, use, name, path):
    (root / "file").write_text("x", encoding="utf-8")
    (root / "loop").symlink_to("loop")
    more = {"write_file": {"content": ""}, "patch": {"old": "a", "new": "b"}}
    more["search_files"] = {"pattern": "x"}
    assert "Errno" not in refused(use, name, path=path, **more.get(name, {}))


def test_patches_of_one_file_from_many_threads_all_count(root, use):
    """Child agents have tools of their own, and change the same files."""
    names = [f"word{n}" for n in range(24)]
    (root / "a.txt").write_text("\n".join(names), encoding="utf-8")

    def patch(name, end=""):
        use("patch", path="a.txt", old=name + end, new=f"x{end}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: patch(name, "\n"), names[:9]))
        list(pool.map(patch, names[10:]))
    lines = (root / "a.txt").read_text(encoding="utf-8").split("\n")
    assert lines == ["x"] * 9 + ["word9"] + ["x"] * 14


def test_a_patch_yields_to_what_somebody_else_wrote_meanwhile(root, use, monkeypatch):
    target = root / "a.txt"
    target.write_text("old", encoding="utf-8")

    def slow(*arguments, **keywords):
        target.write_text("theirs, old", encoding="utf-8")
        return patched(*arguments, **keywords)

    monkeypatch.setattr("hermes_nb.tools.files.patched", slow)
    assert "changed by another program" in refused(use, "patch", path="a.txt", old="old", new="new")
    assert target.read_text(encoding="utf-8") == "theirs, old"


def test_a_passage_of_lines_that_repeat_is_missed_quickly():
    text, old = "    0,\n" * 200_000, "0,\n" * 500 + "x"

    def miss():
        with pytest.raises(ToolError, match="nearest passage"):
            patched(text, old, "new", name="a")

    within(5, miss)

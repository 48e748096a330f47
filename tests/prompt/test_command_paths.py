from __future__ import annotations

import time

import pytest
from hermes_nb.prompt.command_paths import Mention, mention, paths_in
from hypothesis import example, given
from hypothesis import strategies as st


def certain(command):
    return [found.path for found in paths_in(command) if found.sure]


def words(command):
    return [found.path for found in paths_in(command)]


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("cat backend/app.py", ["backend/app.py"]),
        ("cd backend", ["backend"]),
        ("pushd -P backend", ["backend"]),
        ("cd a && cat b/c", ["a", "a/b/c", "b/c"]),
        ("cd a; cd b; cat c/d", ["a", "a/b", "b", "a/b/c/d", "c/d"]),
        ("(cd a && make) && cat b/c", ["a", "b/c"]),
        ("cd -", []),
        ("cd", []),
        ('cd "$DIR" && cat b/c', ["$DIR", "b/c"]),
        ("cd 'my dir' && ls", ["my dir"]),
        ("cat my\\ dir/x", ["my dir/x"]),
        ("./run.sh 'a/it'\"'\"'s'", ["./run.sh", "a/it's"]),
        ("pytest --rootdir=a/b -k c/d", ["a/b", "c/d"]),
        ("dd if=a/b of=c/d", ["a/b", "if=a/b", "c/d", "of=c/d"]),
        ("head data/year=2024/x.csv", ["data/year=2024/x.csv"]),
        ("X=a/b ./run", ["a/b", "./run"]),
        ("if cd a; then cat b/c; fi", ["a", "a/b/c", "b/c"]),
        ("ls src/*.py lib/{a,b}/c $X/y", ["src/*.py", "lib/{a,b}/c", "$X/y"]),
        ("curl https://example.com/a/b -o out/x", ["out/x"]),
        ("git clone git@example.com:org/repo.git", []),
        ("grep -I/usr -rn x a/b 2>&1 >out/log </in/put", ["a/b", "out/log", "/in/put"]),
        ("diff <(ls a/b) <(ls c/d)", ["a/b", "c/d"]),
        ("x=$(cat a/b) && echo `ls c/d`", ["a/b", "c/d"]),
        ("bash -lc 'cd a && cat b/c'", ["a", "a/b/c", "b/c"]),
        ("ls a/b # not c/d\nls e/f", ["a/b", "e/f"]),
        ("cat > a/b <<EOF\nc/d\nEOF\ncat e/f", ["a/b", "e/f"]),
        ("cat <<-'X' <<\"Y\" > a/b\n\tc/d\n\tX\ne/f\nY\ncat g/h", ["a/b", "g/h"]),
        ("cat <<< 'a/b'", ["a/b"]),
        ("echo '1 << 2'\ncat a/b", ["a/b"]),
        ("echo 'never closed a/b", ["a/b"]),
    ],
)
def test_what_a_command_mentions(command, paths):
    assert certain(command) == paths


def test_plain_words_count_only_as_directories():
    assert list(paths_in("ls backend")) == [Mention("backend", sure=False)]
    assert words("make") == []
    assert words("git -C backend status --long") == ["backend", "status"]
    assert words("cd a && ls b") == ["a", "a/b", "b"]


def test_home_is_a_place_and_other_peoples_are_names(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert certain("cat ~/x/y") == ["/home/me/x/y"]
    assert mention("~", sure=True) == Mention("/home/me")
    assert mention("~$report.xlsx", sure=True) == Mention("~$report.xlsx")


@given(st.text(max_size=200) | st.text(alphabet="cd ab/'\"\\$`(){}<>;&|\n#=-~*", max_size=200))
@example("cd \ud800/x")
@example("\0/\0")
def test_no_command_is_too_bad(command):
    for found in paths_in(command):
        assert found.path
        assert "\0" not in found.path


@pytest.mark.parametrize(
    "unit",
    ["a/b ", "'", '"', "'\"", '"\\', "\\", "<<A\n", "<<'", "(", "x", "cd a;", "# ", "a=", "$("],
)
def test_a_megabyte_costs_no_more_than_its_beginning(unit):
    command = unit * (1_000_000 // len(unit))
    started = time.process_time()
    for _, _found in zip(range(256), paths_in(command), strict=False):
        pass
    assert time.process_time() - started < 0.25

"""Which shell commands run unasked: the grammar alone, in folders where the traps really are."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path

import pytest
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.policy import LENGTH_LIMIT, CommandPlace, Need, Pipeline, Stage, assess, judge
from hermes_nb.safety.protected import survey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cpu import within
from tests.safety.holes import (
    ARITHMETIC,
    EVIL_SETTINGS,
    GIT,
    SECRET,
    SECRETS,
    git,
    listed,
    make_holes,
    make_repository,
)


def commands(name):
    """Return the commands of a file; a heredoc is one command."""
    out, block = [], []
    for line in listed(name):
        block.append(line)
        if "<<" in block[0] and "<<<" not in block[0] and line != "EOF":
            continue
        if line.endswith("\\"):
            continue
        out.append("\n".join(block))
        block = []
    return out


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a home and a workspace full of traps."""
    root = tmp_path_factory.mktemp("holes")
    work = make_holes(root)
    make_repository(work / "repo")
    make_repository(work / "clean/vendor", ("core.fsmonitor", f"touch {work}/PWN;:"), bare=True)
    git(work / "clean", "init", "-q", ".")
    return root


@pytest.fixture(scope="module")
def work(root):
    return root / "work"


def decided(command, work, **options):
    """Judge a command that would run in `work`."""
    return judge(command, CommandPlace(work, work, work.parent / "home", **options))


def execute(plan, home):
    """Run a plan, one program after the other; return what it shows."""
    shown, code = b"", 0
    environment = {**child_environment(), "HOME": str(home)}
    for line in plan:
        if (line.after == "&&" and code) or (line.after == "||" and not code):
            continue
        data = b""
        for stage in line.stages:
            given = stage.stdin.read_bytes() if stage.stdin else data
            done = subprocess.run(
                stage.words,
                input=given,
                cwd=line.directory,
                env={**environment, **stage.environment},
                capture_output=True,
                check=False,
                timeout=10,
            )
            data = done.stdout if stage.out == "out" else b""
            shown += done.stderr if stage.err != "null" else b""
            code = done.returncode
        shown += data
    return shown.decode(errors="replace")


@pytest.mark.parametrize("command", commands("denied.txt"))
def test_destruction_is_denied(command):
    assert assess(command).decision == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf \\\n/",
        "rm \\\n-rf \\\n~",
        "r\\\nm -rf /",
        "rm -rf /\\\n",
        "rm -rf $HO\\\nME",
        "sh -c 'rm -rf \\\n/'",
        "shut\\\ndown now",
        "dd if=/dev/zero of=/de\\\nv/sda",
        "pushd / && rm -rf *",
        "rm -rf /?*",
        "rm -rf /**",
    ],
)
def test_a_line_that_goes_on_hides_no_destruction(command):
    assert assess(command).decision == "deny"


def test_a_backslash_that_is_none_of_a_line_end_stays():
    assert assess("echo a\\\\\nrm -rf /").decision == "deny"
    assert assess("rm -rf build\\\n/cache").decision == "ask"


def test_a_line_that_goes_on_hides_no_clock(tmp_path):
    for command in ("cron\\\ntab jobs", "jupyter hermes \\\n jobs add x"):
        assert Need.LATER in decided(command, tmp_path).needs


@pytest.mark.parametrize("command", commands("never_allowed.txt"))
def test_what_may_do_more_than_read_is_not_allowed(command, work):
    assert assess(command, directory=work).decision == "ask"


@pytest.mark.parametrize("command", commands("allowed.txt"))
def test_what_only_reads_is_allowed(command, tmp_path):
    assert assess(command, directory=tmp_path) == assess("ls")


@pytest.mark.parametrize("command", ARITHMETIC)
def test_values_are_never_evaluated(command, work):
    assert decided(command, work).decision == "ask"


@pytest.mark.parametrize("command", SECRETS)
def test_secrets_are_not_read(command, work, root):
    verdict = decided(command, work)
    assert verdict.decision == "ask"
    hidden = decided(command, work, hidden=True)
    if hidden.decision == "allow":  # only what a sandbox masks
        assert re.match(r"grep -rn? |rg |diff |cat plain.txt", command), command


@pytest.mark.parametrize(
    "command",
    [
        *("cat notes.txt", "ls -la", "ls -la sub keys", "stat .env", "find . -name '.env'"),
        *("head -1 notes.txt | tr a-z A-Z", "cat nowhere || echo no", "cat notes.txt && echo yes"),
        *("cat < notes.txt", "grep alpha notes.txt list.txt", "wc -l *.md notes.txt", "du -sh"),
        *("sed 's/a/b/' notes.txt", "sed -n '1,2p' notes.txt", "awk '{print $1}' notes.txt"),
        *("cd sub && ls -la", "cd sub; pwd", "echo x # y", "cat missing 2>/dev/null; echo z"),
        *("file notes.txt", "jq -n '1+1'", "echo 'KEY' | grep K", "cut -c1 notes.txt"),
        *("git -C repo status", "git -C repo log --oneline", "git -C repo show", "cd repo && ls"),
        *("git -C repo log -p", "git -C repo diff HEAD~1"),
        *("git -C repo log -U3", "sort -r list.txt"),
        *("git -C repo show HEAD~1", "git -C repo grep KEY HEAD~1", "git -C repo log --cc"),
        *("git -C repo log --unified=1", "git -C repo diff --stat", "git -C repo branch -a"),
    ],
)
def test_what_is_allowed_runs_as_judged_and_has_no_effect(command, work, root):
    before = sorted(map(str, root.rglob("*")))
    verdict = decided(command, work)
    assert verdict.decision == "allow", verdict.reason
    for line in verdict.plan:
        for stage in line.stages:
            assert Path(stage.words[0]).is_absolute()
            assert not stage.words[0].startswith(str(root))
    assert SECRET not in execute(verdict.plan, root / "home")
    assert sorted(map(str, root.rglob("*"))) == before


def test_the_plan_holds_final_words(work):
    verdict = decided("cd sub && cat ../no*.txt 2>/dev/null | head -n 1 || echo 'a  b'", work)
    first, second = verdict.plan
    assert first == Pipeline(
        after="",
        stages=(
            Stage(("/usr/bin/cat", "../notes.txt"), err="null", environment=path_of(first)),
            Stage(("/usr/bin/head", "-n", "1"), environment=path_of(first)),
        ),
        directory=work / "sub",
    )
    assert (second.after, second.stages[0].words) == ("||", ("/usr/bin/echo", "a  b"))


def test_pip_tells_its_own_version(tmp_path):
    verdict = decided("pip --version", tmp_path)
    assert execute(verdict.plan, tmp_path).startswith("pip ")


def path_of(line):
    """Return the environment of a stage; its PATH has no folder of the user's."""
    assert "/usr/bin" in line.stages[0].environment["PATH"].split(":")
    return line.stages[0].environment


@pytest.mark.parametrize("key", EVIL_SETTINGS)
def test_git_does_not_run_where_the_repository_says_what_runs(key, tmp_path):
    setting = (key, EVIL_SETTINGS[key].format(tmp_path))
    make_repository(tmp_path / "repo", setting)
    make_repository(tmp_path / "outer/vendor", setting, bare=True)
    git(tmp_path / "outer", "init", "-q", ".")
    for command in GIT:
        assert decided(command, tmp_path / "repo").decision == "ask"
        told = command.replace("git ", "git -C repo ", 1)
        assert decided(told, tmp_path).decision == "ask"
        nested = decided(command, tmp_path / "outer/vendor")
        assert nested.decision == "ask", command
    assert not (tmp_path / "PWN").exists()


def test_a_configuration_of_a_worktree_asks(tmp_path):
    make_repository(tmp_path / "repo")
    git(tmp_path / "repo", "worktree", "add", "-q", str(tmp_path / "tree"))
    assert decided("git status", tmp_path / "tree").decision == "allow"
    git(tmp_path / "repo", "config", "extensions.worktreeConfig", "true")
    git(tmp_path / "tree", "config", "--worktree", "core.fsmonitor", f"touch {tmp_path}/PWN;:")
    assert decided("git status", tmp_path / "tree").decision == "ask"


def test_the_content_of_a_secret_has_no_other_name_in_git(tmp_path):
    make_repository(tmp_path / "repo")
    blob = git(tmp_path / "repo", "rev-parse", "HEAD~1:.env").strip()
    commit = git(tmp_path / "repo", "rev-parse", "HEAD").strip()
    for told in (blob, blob[:7], blob.upper()[:9], f"{blob}^{{}}", f"{blob[:8]}^{{blob}}"):
        for verb in ("show", "cat-file -p", "diff HEAD:f.txt"):
            assert decided(f"git {verb} {told}", tmp_path / "repo").decision == "ask", told
    assert decided(f"git show {commit[:9]}", tmp_path / "repo").decision == "allow"


def test_git_where_it_cannot_see_what_is_set(tmp_path):
    make_repository(tmp_path / "repo")
    (tmp_path / "repo/.git/config").write_text("[broken", encoding="utf-8")
    assert decided("git status", tmp_path / "repo").decision == "ask"


def test_a_folder_that_cannot_be_looked_through_in_time_is_asked_about(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    assert decided("grep -r x .", work).decision == "allow"

    def too_slow(root, *, home, seconds):
        return survey(root, home=home, seconds=0 * seconds)

    monkeypatch.setattr("hermes_nb.safety.policy.survey", too_slow)
    assert decided("grep -r x .", work).decision == "ask"


def test_programs_of_the_workspace_are_not_found(work, root, monkeypatch):
    monkeypatch.setenv("PATH", f"{work}:{os.environ['PATH']}")
    verdict = decided("ls sub; cat notes.txt", work)
    assert verdict.decision == "allow"
    assert "sub" not in execute(verdict.plan, root / "home") or not (work / "PWN").exists()
    (work / "rg").write_text("#!/bin/sh\n", encoding="utf-8")
    (work / "rg").chmod(0o755)
    assert decided("rg x notes.txt", work).decision in ("allow", "ask")
    assert all(not stage.words[0].startswith(str(work)) for stage in verdict.plan[0].stages)


@pytest.mark.parametrize(
    "command",
    [
        *("rm -rf /tmp/*", "rm -rf $TMPDIR/build", "rm -rf ${TMPDIR:-/tmp}/build"),
        *("rm -rf ./build", "rm -rf ~/project/build", "rm -rf /home/me/project/build"),
        *("mkfs.ext4 disk.img", "dd if=/dev/zero of=disk.img bs=1M count=10", "kill -1 1234"),
        *("kill -9 1234", "kill %1", "chmod -R u+w data", "chown -R me data"),
        *("git commit -m 'rm -rf /'", "trap 'echo rm -rf /' EXIT", "bash -c \"echo 'rm -rf /'\""),
        "python -c \"print('rm -rf /')\"",
        "python -c \"import shutil; shutil.rmtree('/tmp/demo')\"",
        *("cat > x.sh <<'EOF'\nrm -rf /\nEOF", "tee x <<EOF\nrm -rf /\nEOF", "systemctl status x"),
        *("fdisk -l /dev/sda", "find / -name '*.pyc' -delete", "sed -i 's/a/b/' /etc/hosts"),
        *("docker system prune -af", "sudo grep rm -r /", "pkill -f my_script.py"),
        "echo x >> /etc/fstab",
    ],
)
def test_what_is_risky_but_ordinary_asks(command):
    assert assess(command).decision == "ask"


@pytest.mark.parametrize(
    "command",
    ["ls\u00a0rm", "ls \u202eb", "ls a\u200bb", "ls \x1b[2K", "ls\rrm x", "ｌｓ", "ls \U000e0041"],
)
def test_what_does_not_look_like_what_it_is_asks(command):
    assert assess(command).decision == "ask"


@pytest.mark.parametrize(
    "command", ["r\x00m -rf /", "\x1b]0;t\x07rm -rf /", "ｒｍ -rf /", "rm\u200b -rf /"]
)
def test_hidden_characters_do_not_hide_destruction(command):
    assert assess(command).decision == "deny"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("rm -rf build; echo cleaned", "it deletes build"),
        ("rm a b c d", "it deletes a, b and 2 more"),
        ("rm -i", "it deletes something"),
        ("make report", "make runs the commands in a Makefile"),
        ("git commit -m x", "git commit changes the repository"),
        ("git frob", "git frob may change or run something"),
        ("./run.sh", "it runs the program './run.sh'"),
        ("frobnicate -x", "Hermes does not know what 'frobnicate' does; it may change something"),
        ("find . -delete", "find deletes or writes files"),
        ("echo hi > out.txt", "it writes to 'out.txt'"),
        ("A=1 ls", "it sets A"),
        ("for f in *; do ls; done", "it is a shell script"),
        ("cat .env", ".env may show environment secrets"),
        ("echo $(ls)", "a shell is needed to interpret '$(ls)'"),
    ],
)
def test_a_question_says_what_the_command_does(command, why, work):
    assert assess(command, directory=work).reason == why
    assert assess(command, directory=work).decision == "ask"


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        *(("git commit -m x", "git"), ("git push", "git network credentials")),
        *(("git pull", "git network credentials"), ("pip install x", "environment network")),
        ("python -m pip install x", "environment network"),
        *(("conda install x", "environment network"), ("npm install", "write environment network")),
        *(("curl -O http://x", "write network"), ("pytest", "write"), ("make", "write")),
        *(("mkdir x && rm y", "write"), ("sudo ls", "credentials")),
        *(("ssh host ls", "network credentials"), ("cat .env", "credentials")),
        *(("python x.py ~/.kaggle/kaggle.json", "credentials"), ("python ~/scripts/x.py", "home")),
        ("python -c 'import requests'", "network"),
    ],
)
def test_a_question_says_what_the_command_needs(command, needs, work):
    verdict = decided(command, work, hidden=True)
    assert (verdict.decision, verdict.needs) == ("ask", frozenset(map(Need, needs.split())))


@pytest.mark.parametrize(
    "command",
    [
        *("find . -name '*.py' | xargs wc -l", "python -c 'print(1)'", "x=1; echo $x", "./look.sh"),
        *("for f in *.csv; do head -1 $f; done", "python - <<'EOF'\nprint(1)\nEOF", "mypy src"),
    ],
)
def test_what_a_sandbox_confines_needs_no_question(command, work):
    assert decided(command, work, hidden=True).decision == "confine"
    assert decided(command, work).decision == "ask"


def test_no_sandbox_hides_what_secret_files_held_in_commits(work):
    for command in ("git -C repo show <<< x", "for x in 1; do git log -p; done", "git diff $x"):
        assert decided(command, work, hidden=True).decision == "ask"


def test_a_plan_that_starts_elsewhere_is_judged_as_if_nothing_were_hidden(work, root):
    for hidden in (False, True):
        assert decided(f"cd {root} && cat work/plain.txt", work, hidden=hidden).decision == "ask"
        assert decided(f"cd {root} && ls work", work, hidden=hidden).decision == "allow"
    assert decided("cat plain.txt", work, hidden=True).decision == "allow"


def test_files_outside_of_the_workspace_are_named_in_the_plan(work, root):
    (root / "other.txt").write_text("x", encoding="utf-8")
    verdict = decided("cat ../other.txt notes.txt | wc -c", work, hidden=True)
    assert [stage.paths for stage in verdict.plan[0].stages] == [(str(root / "other.txt"),), ()]
    for command in ("grep -r x ..", "cat ../home/.ssh/id_rsa", "diff -r .. sub"):
        assert decided(command, work, hidden=True).decision != "allow"


def test_what_is_too_long_asks():
    assert assess("ls " + "x" * LENGTH_LIMIT).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        *("(" * 9_000, "$(" * 5_000, "{a,b}" * 1_900, "{a,b} " * 1_600, "{" * 9_900),
        *("find . -exec " * 30, "find . -exec " * 700, "ls;" * 3_000, "git status;" * 900),
        *("git show " + "abcd " * 1_900, "git diff abcd..abce;" * 490, "git diff abcd..abce;" * 49),
        *("sed s/a/b/w;" * 49, "sed -n s/a/b/ x;" * 600, '"$x"' * 2_400, "a=a$a$a$a;" * 900),
        *("for a in 1 2 3 4 5 6 7 8; do " * 30 + "ls; " + "done; " * 30, "[" * 9_900, "`" * 9_900),
        *("'" * 9_901, '"' * 9_901, "\\" * 9_900, "cat <<a\n" * 1_200, "<<a " * 2_400),
        *("bash -c " * 1_200, "bash -c '" * 1_100, "sudo " * 1_900, "echo " + "${x:-" * 1_900),
        *("ls " + "*/" * 4_900, "ls " + "/usr/*/* " * 1_000, "ls /*/*/*/*/*"),
        *("cat " + "a/" * 4_900, "cat " + "~/a " * 2_400, "awk '" + "print" * 1_900 + "'"),
        *("grep -r x /usr; grep -r y /lib", "python -c '" + "run(" * 2_400 + "'"),
        *("sed -n 's/" + "a" * 9_900 + "' x", "a(){ a|b& };" * 800),
    ],
)
@pytest.mark.parametrize("hidden", [False, True])
def test_hostile_input_is_judged_in_time(command, hidden, work, caplog):
    assert len(command) <= LENGTH_LIMIT
    assert within(0.2, decided, command, work, hidden=hidden).decision != "deny"
    assert not caplog.records


WORDS = r"""rm -rf / ls $x " ' ` $( ) ( { } ; | & <<EOF EOF > < 2>&1 \ ~ * for do done in = [ ]
bash -c python eval cd if then fi ${ @ ! # é git status cat .env -- - sed -n 1p find -name """
PIECES = st.sampled_from([*WORDS.split(), "\n", " ", "\x00", "\udc80"])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=80), st.booleans())
def test_no_input_breaks_the_policy(command, hidden):
    logger = logging.getLogger("hermes_nb.safety.policy")
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        verdict = judge(command, CommandPlace(Path.cwd(), Path.cwd(), Path.home(), hidden=hidden))
        assert verdict.decision in ("allow", "ask", "deny", *(["confine"] if hidden else []))
        assert bool(verdict.plan) == (verdict.decision == "allow")
        assert bool(verdict.needs) == (verdict.decision == "ask")
    finally:
        logger.removeHandler(handler)
    assert not records

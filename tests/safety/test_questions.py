"""What a question shows, what an answer covers, and that what was allowed runs just so."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import threading

import pytest
from hermes_nb.models.scripted import call
from hermes_nb.safety.sandbox import level

from tests.contract.safety.people import Person, hermes, results

confined = pytest.mark.skipif(level().name != "bubblewrap", reason="needs bubblewrap")


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    return folder


def run(work, *commands, answer="once", **options):
    person = Person(*([answer] if isinstance(answer, str) else answer))
    with hermes(
        work, *(call("terminal", command=each) for each in commands), approve=person, **options
    ) as agent:
        turn = agent.ask("go")
    return results(turn), person.asked


def test_what_only_reads_runs_without_a_shell_and_unasked(work):
    (work / "data.csv").write_text("b\na\n", encoding="utf-8")
    shown, questions = run(
        work, "sort data.csv | head -1 && wc -l < data.csv; cat nope 2>/dev/null"
    )
    assert not questions
    assert "a\n2\n[exit 1" in shown[0]


@confined
def test_the_input_of_a_program_is_no_way_around_the_sandbox(work):
    """The sandbox hides the second name of a secret, so the file must be opened inside it."""
    (work / ".env").write_text("KEY=sekret-81723\n", encoding="utf-8")
    (work / "notes.md").hardlink_to(work / ".env")
    shown, questions = run(work, "cat < notes.md", "cat notes.md < notes.md", answer="deny")
    assert "sekret" not in "".join(shown) + "".join(each.shown for each in questions)


@confined
@pytest.mark.parametrize(
    "command",
    [
        "for i in 1 2; do echo $i; done",
        f"{sys.executable} -c 'print(1); print(2)'",
        "x=1; echo $x; echo 2",
    ],
)
def test_what_is_not_known_runs_where_it_can_only_read(work, command):
    shown, questions = run(work, command)
    assert not questions
    assert "1\n2\n[exit 0" in shown[0]
    assert "in a sandbox: read-only" in shown[0]


READS = {
    "gzip -dc a.gz | head -1": "packed",
    "gzip -cd a.gz": "packed",
    "gunzip -c a.gz": "packed",
    "zcat a.gz": "packed",
    "gzip -l a.gz": "compressed",
    "make -n": "echo built",
    "make --dry-run -C .": "echo built",
    "diff <(sort a) <(sort b)": "< one",
    "conda list": "",
    "unzip -p a.zip": "",
}


@confined
@pytest.mark.parametrize("command", READS)
def test_what_reads_what_is_packed_or_built_or_joined_runs_unasked(work, command):
    (work / "a.gz").write_bytes(gzip.compress(b"packed\n"))
    (work / "a").write_text("one\n", encoding="utf-8")
    (work / "b").write_text("two\n", encoding="utf-8")
    (work / "Makefile").write_text("V := $(shell touch PWNED)\nall:\n\techo built > c\n", "utf-8")
    before = {*work.iterdir()}
    shown, questions = run(work, command, answer="deny")
    assert not questions
    assert READS[command] in shown[0]
    assert "in a sandbox: read-only" in shown[0]
    assert {*work.iterdir()} == before


@pytest.mark.parametrize("command", ["gzip a", "gunzip a.gz", "make", "conda install x"])
def test_what_packs_builds_or_installs_asks(work, command):
    (work / "a").write_text("one\n", encoding="utf-8")
    assert len(run(work, command, answer="deny")[1]) == 1
    assert (work / "a").exists()


@confined
def test_what_fails_for_want_of_more_is_offered_again(work):
    code = f"{sys.executable} -c \"getattr(__import__('pathlib').Path('made'), 'touch')()\""
    shown, (question,) = run(work, code)
    assert "failed with read-only access" in question.why
    assert "writes the workspace" in question.why
    assert (work / "made").exists()
    assert "in a sandbox: workspace" in shown[0]
    (work / "made").unlink()
    shown, (question,) = run(work, code, answer="deny")
    assert not (work / "made").exists()
    assert "in a sandbox: read-only" in shown[0]


@confined
def test_a_program_beside_the_workspace_is_offered_outside(work):
    (work.parent / "p").write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    (work.parent / "p").chmod(0o755)
    (work.parent / "linked").symlink_to(work.parent)
    shown, (question,) = run(work, "for i in 1; do ../p; done", "cat ../linked/p")
    assert "outside of the sandbox" in question.why
    assert "ran\n[exit 0" in shown[0]
    assert "echo ran\n[exit 0" in shown[1]


@confined
def test_what_was_offered_outside_of_the_sandbox_shows_text_from_outside(work):
    (work.parent / "p").write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    (work.parent / "p").chmod(0o755)
    step = call("terminal", command="for i in 1; do ../p; done")
    with hermes(work, step, approve=Person("once")) as agent:
        agent.ask("go")
        origins = [message.origin for message in agent.messages if message.role == "tool"]
    assert origins == ["outside"]


@confined
def test_a_secret_is_not_there_and_the_result_says_so(work):
    (work / ".env").write_text("WORD=hunter2xyz\n", encoding="utf-8")
    shown, questions = run(work, "for f in .e*; do cat $f; done", answer="deny")
    assert "hunter2xyz" not in shown[0]
    assert "hunter2xyz" not in "".join(question.shown for question in questions)


def repository(work):
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q", "-b", "main", "."], cwd=work, check=True)
    subprocess.run(["git", "config", "user.name", "A"], cwd=work, check=True)
    subprocess.run(["git", "config", "user.email", "a@b.c"], cwd=work, check=True)
    (work / "a.py").write_text("print('a')\n", encoding="utf-8")
    subprocess.run([*git, "add", "."], cwd=work, check=True)
    subprocess.run([*git, "commit", "-qm", "first"], cwd=work, check=True)


STORIES = {
    "a commit": ("git commit --allow-empty -m second", "second"),
    "tests": (f"{sys.executable} -m unittest -v test_a.py > out.txt 2>&1; cat out.txt", "OK"),
    "a build file": ("make all", "built"),
    "a folder": ("mkdir -p figures && touch figures/a.png && ls figures", "a.png"),
    "another branch": ("git checkout -q -b new && git branch --show-current", "new"),
}


@pytest.mark.parametrize("name", STORIES)
def test_one_question_and_then_it_works(work, name):
    repository(work)
    (work / "Makefile").write_text("all:\n\techo built > built.txt; cat built.txt\n", "utf-8")
    (work / "test_a.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\n", "utf-8"
    )
    command, said = STORIES[name]
    shown, questions = run(work, command)
    assert len(questions) == 1, [each.why for each in questions]
    assert "It would run " in questions[0].why
    assert said in shown[0] and "[exit 0" in shown[0]


def test_a_push_runs_outside_after_one_question(work, tmp_path):
    repository(work)
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "far.git"], check=True)
    subprocess.run(["git", "remote", "add", "origin", tmp_path / "far.git"], cwd=work, check=True)
    shown, (question,) = run(work, "git push -q -u origin main && echo pushed")
    assert "outside of the sandbox" in question.why
    assert "pushed\n[exit 0" in shown[0]
    log = subprocess.run(
        ["git", "log", "--oneline", "main"],
        cwd=tmp_path / "far.git",
        check=True,
        capture_output=True,
        text=True,
    )
    assert "first" in log.stdout


@confined
def test_a_server_on_this_machine_is_reached_after_one_question(work):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.sendall(b"rows")

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        (work / "db.py").write_text(
            f"import socket\nprint(socket.create_connection(('127.0.0.1', {port})).recv(9))\n",
            "utf-8",
        )
        shown, questions = run(work, f"{sys.executable} db.py")
    assert len(questions) == 1
    assert "uses the network" in questions[0].why
    assert "b'rows'" in shown[0]


@confined
def test_outside_of_the_sandbox_is_a_choice_of_its_own(work, tmp_path):
    target = tmp_path / "elsewhere.txt"
    command = f"touch {target}"
    _, (question,) = run(work, command, answer="once")
    assert question.outside
    assert not target.exists()
    run(work, command, answer="outside")
    assert target.exists()


TODO = ".git/rebase-merge/git-rebase-todo"
PLANTED = {
    "behind a rebase that has stopped": (
        f"GIT_SEQUENCE_EDITOR=true git rebase -i -x false --root; echo x touch PWNED >> {TODO}"
    ),
    "by hand": "git tag t; mkdir .git/rebase-apply; printf 'pick HEAD\\n\\texec touch PWNED' > {}",
    "in a sequence": "git tag t; mkdir .git/sequencer; echo exec touch PWNED > .git/sequencer/todo",
}


@confined
@pytest.mark.parametrize("name", PLANTED)
def test_what_git_would_execute_later_is_asked_about_and_taken_away(work, name):
    repository(work)
    command = PLANTED[name].format(".git/rebase-apply/git-rebase-todo")
    _, questions = run(work, command, answer=["once", "deny"])
    assert "PWNED" in questions[1].shown
    found = [*work.rglob(".git/re*/git-rebase-todo"), *work.rglob(".git/sequencer/todo")]
    assert not any("PWNED" in path.read_text("utf-8") for path in found)
    run(work, command)
    assert any("PWNED" in path.read_text("utf-8") for path in work.rglob(".git/*/*todo"))


@confined
def test_a_rebase_that_stops_and_goes_on_asks_for_each_command_only(work):
    repository(work)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for branch, texts in (("side", "bcd"), ("main", "e")):
        subprocess.run(["git", "checkout", "-qB", branch, "main"], cwd=work, check=True)
        for text in texts:
            (work / "a.py").write_text(f"print('{text}')\n", encoding="utf-8")
            subprocess.run([*git, "commit", "-qam", text], cwd=work, check=True)
    stopped = "git checkout -q side; git rebase -x 'true mine' main"
    _, questions = run(work, stopped)
    assert len(questions) == 2 and "exec true mine" in questions[1].shown
    for command in ("git rebase --skip", "git checkout --theirs a.py; git add -A"):
        assert (work / TODO).exists()
        assert len(run(work, command)[1]) == 1
    shown, questions = run(work, "GIT_EDITOR=true git rebase --continue; git rebase --abort")
    assert len(questions) == 1, shown
    assert not (work / ".git/rebase-merge").exists()


@confined
def test_a_checkout_brings_attributes_unasked_unless_the_repository_sets_a_filter(work):
    repository(work)
    for name in ("main", "other"):
        (work / ".gitattributes").write_text(f"*.csv filter={name}\n", encoding="utf-8")
        (work / ".gitmodules").write_text(f'[submodule "a"]\n\turl = ./{name}\n', "utf-8")
        run(work, f"git add -A && git commit -qm {name} && git checkout -qb other")
    assert len(run(work, "git checkout -q main")[1]) == 1
    assert "filter=main" in (work / ".gitattributes").read_text("utf-8")
    subprocess.run(["git", "config", "filter.other.clean", "touch PWN"], cwd=work, check=True)
    _, questions = run(work, "git checkout -q other", answer=["once", "deny"])
    assert "+*.csv filter=other" in questions[1].shown
    assert "filter=main" in (work / ".gitattributes").read_text("utf-8")
    assert "other" in (work / ".gitmodules").read_text("utf-8")


LATER = {
    "instructions": ("printf 'obey\\n' > AGENTS.md", "AGENTS.md"),
    "a hook": (
        "mkdir -p .git/hooks && printf 'x\\n' > .git/hooks/pre-commit",
        ".git/hooks/pre-commit",
    ),
    "a start-up file": (
        "mkdir -p sub && printf 'x\\n' > sub/sitecustomize.py",
        "sub/sitecustomize.py",
    ),
    "submodules": ("printf 'x' > .gitmodules", ".gitmodules"),
    "tasks": ("mkdir -p .vscode && printf '{}' > .vscode/tasks.json", ".vscode/tasks.json"),
}


@pytest.mark.parametrize("name", LATER)
def test_what_a_command_leaves_for_later_is_taken_away_until_agreed(work, name):
    repository(work)
    command, path = LATER[name]
    shown, questions = run(work, command, answer=["once", "deny"])
    assert not (work / path).exists(), questions
    if len(questions) > 1:  # where it was not read-only from the beginning
        assert path in questions[1].shown
        assert "were reverted" in shown[0]
        shown, _ = run(work, command, answer=["once", "once"])
        assert (work / path).exists()
        assert "kept the changes" in shown[0]


def test_a_question_shows_everything(work):
    long = "\n".join(f"line {number}" for number in range(2_000))
    person = Person("deny")
    with hermes(work, call("write_file", path="a.txt", content=long), approve=person) as agent:
        agent.ask("go")
    assert all(f"line {number}\n" in person.asked[0].shown + "\n" for number in (0, 999, 1_999))


@pytest.mark.parametrize("setting", ["sandbox: {use: off}", "sandbox: {required: bubblewrap}"])
def test_the_sandbox_is_a_setting(work, setting):
    home = work.parent / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"hermes_nb:\n  {setting}\n", encoding="utf-8")
    shown, questions = run(work, "for i in 1 2; do echo $i; done", "ls")
    if "off" in setting:
        assert len(questions) == 1
        assert "outside of the sandbox" in questions[0].why
    elif level().name == "bubblewrap":
        assert not questions
    else:
        assert "is required" in shown[0]
    assert "[exit 0" in shown[1]

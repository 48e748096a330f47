"""Row 87: what a question names changes while it is open, and nothing runs that it did not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pytest
from hermes_nb import Hermes
from hermes_nb.agent.api import Turn
from hermes_nb.core.events import Answer
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.models.scripted import ScriptedModel, Step, call
from hermes_nb.notebook.shell import Foreign
from hermes_nb.safety.named_files import LARGEST

from tests.contract.safety.people import results
from tests.safety.seat import fresh_shell, seated

Change = Callable[[], object]


class Meddler:
    """Makes a change each time it is asked, while the question is open, and then answers."""

    def __init__(self, *changes: Change, answer: Answer = "once") -> None:
        self.changes, self.answer = list(changes), answer
        self.later: Answer = answer
        """What the second question and those after it hear."""
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.append(request)
        if self.changes:
            self.changes.pop(0)()
        return Approval(self.answer if len(self.asked) == 1 else self.later)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    return folder


def script(work: Path, name: str, mark: str) -> Path:
    """Write a shell script that leaves a mark in the file `ran`."""
    path = work / name
    path.write_text(f"echo {mark} >> ran\n", encoding="utf-8")
    return path


def ran(work: Path) -> list[str]:
    """Return the marks of the scripts that really ran, in order."""
    path = work / "ran"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def told(work: Path, meddler: Meddler, *steps: Step, tools: Sequence[str] = ("terminal",)) -> Turn:
    """Take a turn in `work` whose questions `meddler` answers."""
    model = ScriptedModel([*steps, "Done."])
    home = work.parent / "home"
    with Hermes(model, cwd=work, home=home, tools=tools, approve=meddler) as agent:
        return agent.ask("go")


COMMANDS = {
    "asked about at once": "sh x.sh && rm -f other",
    "asked about after it failed read-only": "sh x.sh",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_87_a_script_changes_while_its_question_is_open(work: Path, command: str) -> None:
    script(work, "x.sh", "old")
    meddler = Meddler(lambda: script(work, "x.sh", "new"))
    told(work, meddler, call("terminal", command=command))
    first, second = meddler.asked
    assert "echo old" in first.shown
    assert "echo new" in second.shown
    assert second.why.startswith("x.sh has changed")
    assert first.nonce != second.nonce
    assert ran(work) == ["new"]


@pytest.mark.parametrize(
    "command",
    [
        "sh $PWD/x.sh",
        'sh "${PWD}/x.sh"',
        "sh $(pwd)/x.sh",
        "sh ~+/x.sh",
        "sh {x,none}.sh",
        "for each in x; do sh $each.sh; done",
        "d=sub; sh $d/y.sh",
        "make -fx.mk",
        "python3 -Bm m",
    ],
)
def test_87_a_script_that_a_command_names_by_an_expansion(work: Path, command: str) -> None:
    (work / "sub").mkdir()

    def write(mark: str) -> None:
        script(work, "x.sh", mark)
        script(work, "sub/y.sh", mark)
        (work / "x.mk").write_text(f"all:\n\techo {mark} >> ran\n", encoding="utf-8")
        code = f"import os; os.system('echo {mark} >> ran')\n"
        (work / "m.py").write_text(code, encoding="utf-8")

    write("old")
    meddler = Meddler(lambda: write("new"))
    told(work, meddler, call("terminal", command=f"{command}; touch made"))
    assert ["echo new" in each.shown for each in meddler.asked] == [False, True]
    assert "echo old" in meddler.asked[0].shown
    assert ran(work) == ["new"]


def test_87_a_script_that_appears_while_its_question_is_open(work: Path) -> None:
    meddler = Meddler(lambda: script(work, "x.sh", "new"))
    told(work, meddler, call("terminal", command="sh x.sh; touch made"))
    assert ["echo new" in each.shown for each in meddler.asked] == [False, True]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_87_a_script_that_changes_each_time_is_refused(work: Path, command: str) -> None:
    script(work, "x.sh", "0")
    changes = [lambda n=n: script(work, "x.sh", str(n)) for n in range(1, 9)]
    meddler = Meddler(*changes)
    turn = told(work, meddler, call("terminal", command=command))
    assert len(meddler.asked) == 3
    assert "x.sh changed each time" in results(turn)[0]
    assert ran(work) == []


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_87_always_covers_what_was_shown(work: Path, command: str) -> None:
    script(work, "x.sh", "shown")
    meddler = Meddler(answer="always")
    go = call("terminal", command=command)
    told(work, meddler, go, go)
    assert len(meddler.asked) == 1
    assert ran(work) == ["shown", "shown"]
    meddler = Meddler(lambda: script(work, "x.sh", "new"), answer="always")
    turn = told(work, meddler, go, go)
    assert ["echo new" in each.shown for each in meddler.asked] == [False, True]
    assert ran(work)[2:] == ["new", "new"], results(turn)


def test_87_what_is_too_large_to_digest_asks_each_time(work: Path) -> None:
    script(work, "x.sh", "big")
    with (work / "x.sh").open("a", encoding="utf-8") as file:
        file.write("exit\n" + "# filler\n" * (LARGEST // 9 + 1))
    go = call("terminal", command="sh x.sh; touch made")
    meddler = Meddler(answer="always")
    told(work, meddler, go, go)
    assert [each.shape for each in meddler.asked] == ["", ""]


def test_87_a_file_changes_before_it_is_replaced(work: Path) -> None:
    path = work / "notes.txt"
    path.write_text("mine\n", encoding="utf-8")
    meddler = Meddler(lambda: path.write_text("mine, and more\n", encoding="utf-8"))
    go = call("write_file", path="notes.txt", content="yours\n")
    told(work, meddler, go, tools=["files"])
    assert len(meddler.asked) == 2
    assert meddler.asked[1].why.startswith("notes.txt has changed")


def leads(link: Path, target: str) -> None:
    """Have a symbolic link lead there."""
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@pytest.mark.parametrize(
    ("path", "target", "made"),
    [("n.md", "AGENTS.md", "AGENTS.md"), ("d/x.yml", ".github/workflows", "d/x.yml")],
)
def test_87_a_link_leads_elsewhere_while_its_question_is_open(
    work: Path, path: str, target: str, made: str
) -> None:
    """What is run or obeyed later is not written for a yes to something else."""
    (work / "plain").mkdir()
    (work / ".github" / "workflows").mkdir(parents=True)
    link = work / path.partition("/")[0]
    leads(link, "plain")
    meddler = Meddler(lambda: leads(link, target))
    meddler.later = "deny"
    told(work, meddler, call("write_file", path=path, content="obey\n"), tools=["files"])
    first, second = meddler.asked
    assert "later" not in first.why and "run or obeyed later" in second.why
    assert not (work / made).exists()


def test_87_a_folder_leads_elsewhere_while_its_question_is_open(work: Path) -> None:
    for name in ("shown", "other"):
        (work / name).mkdir()
    leads(work / "d", "shown")
    meddler = Meddler(lambda: leads(work / "d", "other"))
    meddler.later = "deny"
    told(work, meddler, call("terminal", command="rm -f a; touch made", workdir="d"))
    assert meddler.asked[1].why.startswith("d has changed")
    assert not (work / "other" / "made").exists()


BOTH = ("files", "terminal")
FOLDERS = {
    "make -C sub": ("sub/Makefile", "all:\n\techo {} >> ../ran\n"),
    "python3 sub": ("sub/__main__.py", "open('ran', 'a').write('{} ')\n"),
    "cd sub && cd in && sh x.sh": ("sub/in/x.sh", "echo {} >> ../../ran\n"),
    "cd -- sub; sh x.sh": ("sub/x.sh", "echo {} >> ../ran\n"),
}


@pytest.mark.parametrize("command", FOLDERS)
def test_87_what_a_named_folder_runs_changes_while_its_question_is_open(
    work: Path, command: str
) -> None:
    name, text = FOLDERS[command]
    path = work / name
    path.parent.mkdir(parents=True)
    path.write_text(text.format("old"), "utf-8")
    meddler = Meddler(lambda: path.write_text(text.format("new"), "utf-8"))
    meddler.later = "deny"
    told(work, meddler, call("terminal", command=f"{command} && rm -f other"))
    assert [each.shown.count("new") for each in meddler.asked] == [0, 1]
    assert ran(work) == []


def test_87_always_holds_for_one_folder(tmp_path: Path) -> None:
    """The key of an approval names the working directory: a kernel may change its own."""
    keys = set()
    for name in ("work", "other"):
        folder = tmp_path / name
        folder.mkdir()
        meddler = Meddler(answer="deny")
        write = call("write_file", path="notes.txt", content="x")
        told(folder, meddler, write, call("terminal", command="rm -rf b"), tools=BOTH)
        keys |= {each.shape for each in meddler.asked}
    assert len(keys) == 4 and "" not in keys


def test_87_a_skill_changes_while_its_question_is_open(work: Path) -> None:
    text = "---\nname: {0}\ndescription: how to {0}\n---\n{1}\n"
    skill = work.parent / "home" / "skills" / "tidy" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(text.format("tidy", "Old words."), encoding="utf-8")
    newer = text.format("tidy", "What the user wrote meanwhile.")
    meddler = Meddler(lambda: skill.write_text(newer, encoding="utf-8"))
    content = text.format("tidy", "The agent's words.")
    go = call("skill_manage", action="edit", name="tidy", content=content)
    told(work, meddler, go, tools=["skills"])
    first, second = meddler.asked
    assert "Old words." in first.shown
    assert "What the user wrote meanwhile." in second.shown


@pytest.fixture(scope="module")
def shell() -> Foreign:
    return fresh_shell()


def code(path: Path, source: str) -> None:
    """Write a notebook whose one cell has this source."""
    cells = [nbformat.v4.new_code_cell(source, id="first")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def test_87_a_cell_changes_while_its_question_is_open(shell: Foreign, tmp_path: Path) -> None:
    with seated(shell, tmp_path, answer="y") as seat:
        code(seat.notebook, "seen = 'old'")
        read = seat.keyboard.readline

        def readline(*_: object) -> str:
            if not seat.keyboard.asked:
                code(seat.notebook, "seen = 'new'")
            return read()

        seat.keyboard.readline = readline
        go = call("run_cell", id="first")
        questions = seat.turn("go", call("read_cells"), go, go)
        changed, done = [each.text for each in seat.results[1:]]
        assert "has changed since" in changed
        assert "seen = 'new'" in changed  # the model, too, knows what the next question is about
        assert questions == 2
        assert "ran in" in done
        assert shell.user_ns["seen"] == "new"


def test_87_a_notebook_changes_while_its_question_is_open(shell: Foreign, tmp_path: Path) -> None:
    with seated(shell, tmp_path, answer="y") as seat:
        other = seat.work / "other.ipynb"
        leaves = "open('ran', 'a').write('{} ')"
        code(other, leaves.format("old"))
        read = seat.keyboard.readline

        def readline(*_: object) -> str:
            if not seat.keyboard.asked:
                code(other, leaves.format("new"))
            return read()

        seat.keyboard.readline = readline
        assert seat.turn("go", call("run_notebook", path="other.ipynb")) == 2
        assert ran(seat.work) == ["new"]

"""`jupyter hermes enable` and `disable`: the files, and that the very first `%%hermes` works."""

from __future__ import annotations

import json
import sys

import nbformat
import pexpect
import pytest
from hermes_nb.cli.install import CONFIGS, DECLARED, STARTUP
from hermes_nb.cli.main import main
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.kernels import started
from tests.loopback import says
from tests.patience import ended


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Return the profile of an IPython directory of our own; `enable --user` is for it."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    return tmp_path / "ipython" / "profile_default"


def files(folder):
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def test_one_file_is_made_and_goes_again(profile, capsys):
    assert main(["enable"]) == 0
    assert set(files(profile)) == {f"startup/{STARTUP}"}
    assert "written: " in capsys.readouterr().out
    made = files(profile)
    assert main(["enable", "--user"]) == 0
    assert files(profile) == made
    assert "unchanged: " in capsys.readouterr().out
    assert main(["disable", "--user"]) == 0
    assert not profile.exists()
    assert main(["disable", "--user"]) == 0
    assert "nothing to undo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("declared", "left"),
    [
        (DECLARED, None),
        ("{ ALL}", "{}"),
        ('{\n    "A": {"b": 1},\n    "C": 2,\n    ALL\n}\n',
         '{\n    "A": {"b": 1},\n    "C": 2\n}\n'),
        ('{"a": 1, ALL, "z": 2}', '{"a": 1, "z": 2}'),
        ('{"MagicsManager":{"lazy_magics":{"a":"b",OURS}},\r\n"x":1}',
         '{"MagicsManager":{"lazy_magics":{"a":"b"}},\r\n"x":1}'),
        ('{"MagicsManager": { "lazy_magics": {OURS}}}', '{"MagicsManager": {}}'),
        ('{"MagicsManager": {"lazy_magics": {OURS, "x": "y"}}}',
         '{"MagicsManager": {"lazy_magics": {"x": "y"}}}'),
        ('{"MagicsManager":{"lazy_magics":{"hermes":"hermes_nb"}}}',
         '{\n  "MagicsManager": {\n    "lazy_magics": {}\n  }\n}\n'),
        ('{"MagicsManager": {"lazy_magics": {"hermes": "hermes_nb_of_others"}}}', ...),
    ],
)  # fmt: skip
def test_what_earlier_versions_declared_is_taken_back(profile, declared, left):
    whole = declared.replace("ALL", '"MagicsManager": {"lazy_magics": {OURS}}')
    text = whole.replace("OURS", '"hermes": "hermes_nb"')
    profile.mkdir(parents=True)
    file = profile / CONFIGS[0]
    file.write_bytes(text.encode())
    assert main(["enable"]) == 0
    assert file.read_bytes() == text.encode()
    assert main(["disable"]) == 0
    if left is None:
        assert not profile.exists()
    else:
        assert file.read_bytes().decode() == (text if left is ... else left)


@pytest.mark.parametrize("damage", [b"{'hermes_nb': 1}", b'["hermes_nb"]', b"\xff\xfe", b"["])
def test_a_damaged_file_is_refused_before_anything_is_done(profile, capsys, damage):
    assert main(["enable"]) == 0
    (profile / CONFIGS[1]).write_bytes(damage)
    before = files(profile)
    ours = b"hermes_nb" in damage or damage[0] == 0xFF
    assert main(["disable"]) == (1 if ours else 0)
    if ours:
        assert files(profile) == before
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert (CONFIGS[1] in said) is ours


def test_somebody_elses_startup_file_of_that_name_stays(profile):
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / STARTUP).write_text("x = 1\n")
    main(["disable"])
    assert files(profile) == {f"startup/{STARTUP}": b"x = 1\n"}


def test_levels(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert main(["enable", "--sys-prefix"]) == 0
    assert len(files(tmp_path / "venv" / "etc" / "ipython")) == 1
    assert main(["disable", "--sys-prefix"]) == 0
    assert not (tmp_path / "venv" / "etc" / "ipython").exists()
    with pytest.raises(SystemExit) as ended:
        main(["enable", "--user", "--system"])
    assert ended.value.code == 2


def run(tmp_path, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": tmp_path}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.kernel
def test_the_first_cell_is_a_turn(profile, serve, tmp_path):
    main(["enable"])
    serve(says("Forty-two."), says("Again."))
    sources = (
        "loaded = [name for name in dir() if not name.startswith('_')]",
        "%%hermes\nwhat is it?",
        "import sys\nanswer = 3\n%hermes and now?",
        "print(loaded, answer)",
    )
    outputs = run(tmp_path, *sources)
    assert "Forty-two." in outputs[1][0]["data"]["text/markdown"]
    assert "Again." in outputs[2][0]["data"]["text/markdown"]
    names = {"In", "Out", "exit", "get_ipython", "open", "quit"}
    assert outputs[3][0]["text"] == f"{sorted(names)} 3\n"


@pytest.mark.slow
@pytest.mark.kernel
def test_help_and_completion_come_before_any_call(profile):
    main(["enable"])
    manager, client = started()
    try:
        reply = client.execute_interactive("%hermes?", timeout=60, output_hook=lambda _: None)
        assert "--max-requests" in reply["content"]["payload"][0]["data"]["text/plain"]
        client.complete("%%herm", 6)
        matches = client.get_shell_msg(timeout=60)["content"]["matches"]
        assert "%%hermes" in matches
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.kernel
def test_lazy_magics_alone_say_what_to_do(profile, serve, tmp_path, monkeypatch):
    profile.mkdir(parents=True)
    (profile / CONFIGS[0]).write_text(DECLARED)
    with pytest.raises(CellExecutionError, match="run this cell again"):
        run(tmp_path, "%%hermes\nwhat is it?")
    monkeypatch.setenv("HERMES_NB_APPROVE", "never")
    serve(says("Now."))
    outputs = run(tmp_path, "try:\n    %hermes help\nexcept Exception:\n    1", "%hermes go")
    assert "Now." in outputs[1][0]["data"]["text/markdown"]


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("startup", [True, False])
def test_terminals(profile, serve, tmp_path, monkeypatch, startup):
    main(["enable"])
    if not startup:  # as some have it in a configuration of their own
        (profile / "startup" / STARTUP).unlink()
        (profile / CONFIGS[1]).write_text(DECLARED)
    monkeypatch.setenv("TERM", "dumb")
    serve(says("The answer is 42."), says("And 43."))
    child = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 200),
    )
    try:
        for prompt, answer in [("%hermes go", "is 42."), ("%hermes go on", "And 43.")]:
            child.expect(r"In \[\d\]: ")
            child.sendline(prompt)
            child.expect(answer)
        child.expect(r"In \[3\]: ")
    finally:
        ended(child)


def test_one_kernelspec(profile, tmp_path, monkeypatch, capsys):
    spec = {"display_name": "P", "language": "python"}
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    folder = tmp_path / "jupyter" / "kernels"
    for name, words in (("ours", argv), ("other", ["/bin/true"]), ("bare", ["/bin/false", *argv])):
        (folder / name).mkdir(parents=True)
        text = json.dumps({"argv": words, **spec})
        (folder / name / "kernel.json").write_text(text)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    before = files(folder)
    assert main(["enable", "--kernelspec", "ours"]) == 0
    assert main(["enable", "--kernelspec", "ours"]) == 0
    enabled = json.loads((folder / "ours" / "kernel.json").read_text())
    assert enabled == {"argv": [*argv, "--ext=hermes_nb.notebook.lazy"], **spec}
    assert main(["disable", "--kernelspec", "ours"]) == 0
    assert files(folder) == before
    for name, gist in [
        ("other", "does not start IPython's kernel"), ("bare", "has no hermes_nb"),
        ("none", "no usable kernelspec 'none'; available: "),
    ]:  # fmt: skip
        capsys.readouterr()
        assert main(["enable", "--kernelspec", name]) == 1
        assert gist in capsys.readouterr().err
    assert files(folder) == before


@pytest.mark.slow
@pytest.mark.kernel
def test_a_cell_that_loads_and_asks_says_what_to_do():
    cells = [nbformat.v4.new_code_cell("%load_ext hermes_nb\n%hermes help") for _ in range(2)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, allow_errors=True).execute()
    assert "run this cell again" in cells[0].outputs[-1]["evalue"]
    assert "%hermes resume" in cells[1].outputs[-1]["data"]["text/markdown"]

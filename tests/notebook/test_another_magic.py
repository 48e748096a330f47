"""Another package's `%%hermes` beside ours: the one loaded second says so, unloading gives back."""

from __future__ import annotations

import re
import sys

import pytest
from hermes_nb.notebook.lazy import watch

from tests.notebook.conftest import shell
from tests.notebook.test_modes import plays

__all__ = ["shell"]

OTHER = """
from IPython.core.magic import Magics, line_cell_magic, magics_class
@magics_class
class HermesMagics(Magics):
    @line_cell_magic
    def hermes(self, line, cell=None):
        print("the other:", line, cell)
def load_ipython_extension(shell):
    shell.register_magics(HermesMagics)
"""  # named as in the package jupyter-ai-hermes-magics 0.5.2
ASK = "%%hermes\nhow long?"


@pytest.fixture
def cells(shell, tmp_path, monkeypatch, capsys):
    """Return a function that runs a cell and returns what it printed."""
    (tmp_path / "other_hermes.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(code):
        assert shell.run_cell(code).success
        return capsys.readouterr().out

    yield run
    shell.run_cell("%unload_ext hermes_nb")
    sys.modules.pop("other_hermes", None)


def has_ours(shell):
    return "hermes_nb" in shell.magics_manager.magics["cell"]["hermes"].__module__


def test_ours_second_says_so_and_gives_it_back(cells, shell):
    assert cells("%load_ext other_hermes") == ""
    told = cells("%load_ext hermes_nb")
    assert re.fullmatch(r"[^\n]*other_hermes[^\n]*%unload_ext hermes_nb[^\n]*\n", told)
    plays(shell.magics_manager.registry["HermesMagics"], "Two metres.")
    assert "Two metres." in cells(ASK)
    assert cells("%unload_ext hermes_nb") == ""
    assert cells(ASK) == "the other:  how long?\n\n"
    assert cells("%hermes list") == "the other: list None\n"
    assert type(shell.magics_manager.registry["HermesMagics"]).__module__ == "other_hermes"


def test_theirs_second_is_said_once_and_works(cells, shell):
    assert cells("%load_ext hermes_nb") == ""
    told = cells("%load_ext other_hermes")
    assert re.fullmatch(r"[^\n]*other_hermes[^\n]*%reload_ext hermes_nb[^\n]*\n", told)
    assert cells(ASK) == "the other:  how long?\n\n"
    assert "other_hermes" in cells("%reload_ext hermes_nb")
    assert has_ours(shell)
    cells("%unload_ext hermes_nb")
    assert cells(ASK) == "the other:  how long?\n\n"


def test_what_loads_ours_in_time_leaves_theirs_alone(cells, shell):
    cells("%load_ext other_hermes")
    watch(shell)
    assert cells(ASK) == "the other:  how long?\n\n"
    assert "hermes_nb" not in shell.extension_manager.loaded


def test_the_mode_is_held_beside_theirs_too(cells, shell):
    cells("%load_ext hermes_nb")
    ours = shell.magics_manager.registry["HermesMagics"]
    plays(ours)
    cells("%load_ext other_hermes")
    from hermes_nb.notebook.execute.nested import execute

    code = "get_ipython().configurables[-2].agent.configure('approve', 'all')"
    result = shell.loop_runner(execute(shell, code))
    assert "cannot change the approval mode" in str(result)


def test_the_doctor_names_it(tmp_path, monkeypatch):
    from hermes_nb.notebook.commands.doctor import versions

    assert versions().state == "ok"
    info = tmp_path / "jupyter_ai_hermes_magics-0.5.2.dist-info"
    info.mkdir()
    head = "Metadata-Version: 2.1\nName: jupyter-ai-hermes-magics\nVersion: 0.5.2\n"
    (info / "METADATA").write_text(head, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = versions()
    assert found.state == "note"
    assert "jupyter-ai-hermes-magics 0.5.2" in found.text and "%reload_ext hermes_nb" in found.text

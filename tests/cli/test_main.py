"""The command line itself: what it offers, what it costs, how it ends."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pkgutil import resolve_name

import pytest
from hermes_nb.agent.session.export import FORMATS
from hermes_nb.agent.settings.config import APPROVE_MODES
from hermes_nb.cli import main as commands
from hermes_nb.cli.main import main, parser
from hermes_nb.models.cassette import MODES

from tests.architecture.test_imports import modules_after


def test_help_imports_nothing_and_writes_nothing(tmp_path, home):
    code = (
        "from hermes_nb.cli.main import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass"
    )
    loaded = modules_after(code, tmp_path)
    ours = {name for name in loaded if name.startswith("hermes_nb.")}
    assert not loaded.intersection({"openai", "IPython", "jupyter_core", "yaml", "asyncio"})
    assert {name.split(".")[1] for name in ours} == {"cli", "core", "moved"}
    assert not home.exists()


def test_choices_are_those_that_there_are():
    assert commands.MODES == MODES
    assert commands.APPROVALS == APPROVE_MODES
    assert commands.FORMATS == FORMATS


def every_command():
    (commands,) = (
        each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return commands.choices


def test_every_command_has_help_and_a_function(capsys):
    for name, made in every_command().items():
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert "exit codes: " in capsys.readouterr().out
        run = made.get_default("run")
        assert callable(resolve_name(run) if isinstance(run, str) else run)


def test_a_terminal_that_knows_ascii_alone(tmp_path, home):
    done = subprocess.run(
        [sys.executable, "-m", "hermes_nb.cli", "doctor"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "HERMES_NB_CASSETTE": "replay"},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\\u2713" in done.stdout


def test_a_reader_that_has_seen_enough(tmp_path, home):
    done = subprocess.run(
        f"{sys.executable} -m hermes_nb.cli doctor | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=tmp_path, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr

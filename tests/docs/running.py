"""Runs the blocks of a page as a reader would: Python and magics in one shell, commands in bash."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from IPython.utils.capture import capture_output

from tests.docs.blocks import ROOT, Block
from tests.docs.playing import Playing

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TIMEOUT = 120
"""Seconds that the commands of one block may take."""


class Reader:
    """Somebody who follows a page; `shell` is an IPython shell, `folder` where they sit."""

    def __init__(self, shell: Any, folder: Path, model: Playing) -> None:
        self.shell, self.folder, self.model = shell, folder, model
        self.printed = ""

    def follow(self, block: Block) -> None:
        """Do what a block says; raise AssertionError, named after the block, where it fails."""
        told = block.directives
        if "not run" in told:
            return
        if "output" in told:
            assert_alike(block.text, self.printed, block.where)
            return
        if "file" in told:
            path = self.folder / told["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            return
        if "before" in told:
            self._cell(told["before"], block, fails="")
        steps = json.loads(told["model"]) if "model" in told else []
        self.model.say(steps)
        doing = self._doing(block)
        assert doing is not None, f"{block.where}: nobody knows how to run {block.language!r}"
        doing(block)
        assert not self.model.left, f"{block.where}: {self.model.left} answers were never asked for"

    def _doing(self, block: Block) -> Callable[[Block], None] | None:
        if block.is_cell or block.language == "python":
            return self._run
        return {
            "console": self._console,
            "bash": self._script,
            "json": lambda b: json.loads(b.text),
            "toml": lambda b: tomllib.loads(b.text),
            "yaml": self._settings,
            "text": lambda _: None,  # what is shown, not run
            "diff": lambda _: None,
            "markdown": lambda _: None,
        }.get(block.language)

    def _run(self, block: Block) -> None:
        loads, asks = (re.search(p, block.text, re.M) for p in (r"^%load_ext", r"^%%?hermes"))
        assert not (loads and asks), f"{block.where}: load the extension in a cell of its own"
        self._cell(block.text, block, fails=block.directives.get("fails", ""))

    def _cell(self, code: str, block: Block, *, fails: str) -> None:
        with capture_output() as captured:
            result = asyncio.run(
                self.shell.run_cell_async(
                    code, transformed_cell=self.shell.transform_cell(code), store_history=True
                )
            )
        shown = [output.data.get("text/plain", "") for output in captured.outputs]
        self.printed = ANSI.sub("", "\n".join([captured.stdout, *shown])).strip("\n")
        problem = result.error_in_exec or result.error_before_exec
        if fails:
            assert problem is not None, f"{block.where}: it was to fail with {fails!r}"
            assert fails in str(problem), f"{block.where}: failed otherwise: {problem!r}"
        elif problem is not None:
            message = f"{block.where}: {type(problem).__name__}: {problem}\n{self.printed}"
            raise AssertionError(message) from problem

    def _settings(self, block: Block) -> None:
        assert yaml.safe_load(block.text) is not None, block.where

    def _console(self, block: Block) -> None:
        """Run what stands behind `$ `, and compare what follows it if anything does."""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                line, _, expected = expected.partition("\n")
                command += f"\n{line}"
            self._shell(command, block)
            if expected.strip():
                assert_alike(expected, self.printed, f"{block.where} ($ {command})")

    def _script(self, block: Block) -> None:
        self._shell(block.text, block)

    def _shell(self, command: str, block: Block) -> None:
        command = re.sub(r"\s+# .*$", "", command)
        if stand_in(command):
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        self.printed = ANSI.sub("", done.stdout).strip("\n")
        wanted = block.directives.get("fails")
        if wanted is not None:
            assert done.returncode and wanted in done.stdout, f"{block.where}: {done.stdout}"
        else:
            assert done.returncode == 0, f"{block.where}: $ {command}\n{done.stdout}"


def stand_in(command: str) -> bool:
    """Check a command that is not for a test to run; say whether this was one.

    What installs is looked up in the project's own metadata, a make target is printed by make.
    """
    if match := re.match(r"make (?:[A-Z]+=\S+ )*([a-z-]+)", command):
        done = subprocess.run(
            ["make", "-n", match[1]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return True
    if re.match(r"(python -m )?pip install", command):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for extras in re.findall(r"hermes_nb\[([\w,]+)\]", command):
            unknown = set(extras.split(",")) - set(project["optional-dependencies"])
            assert not unknown, f"there are no such extras: {unknown}"
        return True
    if re.match(r"jupyter lab\b", command):
        return (Path(sys.executable).parent / "jupyter-lab").exists()
    return bool(
        re.match(r"python3? -m (venv|hermes_nb\.models\.weights)\b|\. \S+/activate$", command)
    )


def assert_alike(expected: str, printed: str, where: str) -> None:
    """Compare line by line; `...` stands for anything within a line, and alone for any lines."""
    wanted, given = (_lines(text) for text in (expected, printed))
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == "..." else _loose(line) + r"\n" for line in wanted
    )
    fits = re.fullmatch(pattern, "".join(f"{line}\n" for line in given))
    shown = "\n".join([*wanted, "--- but it printed", *given])
    assert fits, f"{where}: expected\n{shown}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _loose(line: str) -> str:
    return r"[^\n]*?".join(re.escape(piece) for piece in line.split("..."))

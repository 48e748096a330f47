"""Fixtures of the command line's and the notebook's tests, for those of extras."""

from __future__ import annotations

from tests.cli.conftest import serve
from tests.notebook.conftest import desk, pytest_pyfunc_call, run, shell

__all__ = ["desk", "pytest_pyfunc_call", "run", "serve", "shell"]

"""A real shell, for the faults that notebook tools meet."""

from __future__ import annotations

from tests.notebook.conftest import shell

__all__ = ["shell"]

"""The messages that the page of troubles quotes are messages of the package."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTED = re.compile(r"^### `(.+)`$", re.MULTILINE)


@pytest.fixture(scope="module")
def texts():
    """Every text constant of the package and its tables; `…` stands for what is put in."""
    tables = sorted((ROOT / "hermes_nb").rglob("*.toml"))
    found = [line for path in tables for line in path.read_text("utf-8").splitlines()]
    for path in sorted((ROOT / "hermes_nb").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("message", QUOTED.findall(PAGE.read_text(encoding="utf-8")))
def test_a_quoted_message_exists(message, texts):
    pattern = re.compile(".*?".join(re.escape(piece) for piece in message.split("…")), re.DOTALL)
    assert any(pattern.match(text) or pattern.search(text) for text in texts), message

"""What CONTRIBUTING shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_of_a_tool_and_its_test(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    namespace = {}
    exec("\n".join(blocks), namespace)
    namespace["test_words_are_counted"](tmp_path)

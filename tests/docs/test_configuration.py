"""The page of settings lists what the code reads, with the code's defaults."""

from __future__ import annotations

import re

import pytest
import yaml
from hermes_nb.app import config
from hermes_nb.app.sources import Picker

from tests.docs.blocks import ROOT, blocks, pages

PAGE = ROOT / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (`[^`]*`|–) \|(.*)$", re.MULTILINE)
BESIDES = {"fallback_providers", "mcp_servers"}
"""Root keys that are not looked up by a picker."""


def read_keys(monkeypatch, home) -> dict[str, tuple[str, object]]:
    """Return what `load_settings` asks for: by key, Hermes Agent's own key and the default."""
    seen: dict[str, tuple[str, object]] = {}

    class Noting(Picker):
        def __call__(self, name, *, foreign=(), default=""):
            if name not in seen or foreign == ("model",):
                seen[name] = (".".join(foreign), default)
            return super().__call__(name, foreign=foreign, default=default)

        def at(self, group, name, *, default):
            seen[f"{group}.{name}"] = ("", default)
            return super().at(group, name, default=default)

    monkeypatch.setattr(config, "Picker", Noting)
    config.load_settings(home=home, environ={})
    return seen


def written_keys() -> dict[str, tuple[str, object]]:
    """Return what the page's tables say, in the same form."""
    found = {}
    for key, default, rest in ROW.findall(PAGE.read_text(encoding="utf-8")):
        if key.isupper():
            continue
        cells = rest.split("|")
        foreign = match[1] if (match := re.fullmatch(r" `([\w.]+)` ", cells[0])) else ""
        text = default.strip("`")
        value = {"–": "", "off": "off"}.get(
            text, yaml.safe_load(text)
        )  # a bare off is YAML's false
        found[key] = (foreign, value)
    return found


def test_the_page_lists_every_setting_with_its_default(monkeypatch, home):
    empty = ("", None, (), {}, [])
    seen = {
        key: (foreign, "" if default in empty else default)
        for key, (foreign, default) in read_keys(monkeypatch, home).items()
    }
    assert written_keys() == seen


@pytest.mark.parametrize(
    "block",
    [b for page in pages() for b in blocks(page) if b.language == "yaml"],
    ids=lambda block: block.where,
)
def test_examples_of_settings_are_accepted(block, home):
    home.mkdir(parents=True)
    document = yaml.safe_load(block.text)
    known = set(written_keys()) | {foreign for foreign, _ in written_keys().values() if foreign}
    groups = {key.partition(".")[0] for key in known if "." in key}
    own = document.get("hermes_nb", {})
    shared = {key: value for key, value in document.items() if key != "hermes_nb"}
    for key, value in [*own.items(), *shared.items()]:
        if key in groups and isinstance(value, dict):
            unknown = {f"{key}.{name}" for name in value} - known - {"model.default"}
            unknown -= {f"memory.{document_provider(document)}"}
            assert not unknown, f"{block.where}: {unknown}"
        else:
            assert key in known | BESIDES, f"{block.where}: {key}"
    (home / "config.yaml").write_text(block.text, encoding="utf-8")
    config.load_settings(home=home, environ={})


def document_provider(document: dict) -> str:
    """Return the memory provider that an example chooses, whose settings are its own."""
    own = document.get("hermes_nb", {}).get("memory", {})
    return (own or document.get("memory", {})).get("provider", "")

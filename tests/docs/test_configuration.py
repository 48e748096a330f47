"""The page of settings lists what the code reads, with the code's defaults."""

from __future__ import annotations

import re

import pytest
import yaml
from hermes_nb.agent.settings import config
from hermes_nb.agent.settings.sources import Picker

from tests.docs.blocks import ROOT, blocks, pages

PAGE = ROOT / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (`[^`]*`|–) \|(.*)$", re.MULTILINE)
BESIDES = {"fallback_providers", "gateway", "mcp", "mcp_servers"}
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


CLAIMS = """
howto/costs.md: at {compression.max_prompt_tokens:,} tokens
long-sessions.md: or {compression.max_prompt_tokens:,} tokens
memory.md: {memory.memory_char_limit:,} characters
memory.md: {memory.user_char_limit:,} characters
migration.md: A turn has {max_requests} model requests
migration.md: at {compression.max_prompt_tokens:,} tokens
what-hermes-knows.md: over {skills.index_tokens:,} tokens
"""  # what pages say of defaults in passing
LACKING = {"MCP": "mcp_servers", "sub-agents": "delegation.enabled"}


@pytest.mark.parametrize(("page", "claim"), re.findall(r"(\S+): (.*)", CLAIMS))
def test_pages_say_the_defaults_of_the_table(page, claim):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    said = re.sub(r"{([\w.]+)", r"{0[\1]", claim)
    assert said.format({key: value for key, (_, value) in written_keys().items()}) in text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_what_pages_say_of_settings_is_so(page):
    known = {name for key, (foreign, _) in written_keys().items() for name in (key, foreign)}
    groups = {key.partition(".")[0] for key in known if "." in key} - {"skills", "notebook"}
    text = page.read_text(encoding="utf-8")
    named = [key for key in re.findall(r"`(\w+\.\w+)[:`]", text) if key.split(".")[0] in groups]
    assert [key for key in named if key not in known | {"model.default", "memory.NAME"}] == []
    # Reviews go on with the conversation's model, unless one is named for them alone.
    of_reviews = r"(?i)reviews[^.\n]*`auxiliary(?!\.reviews)|`auxiliary\.model`[^.\n]*\breviews"
    assert not re.search(of_reviews, text)
    for lacking in re.findall(r"\| (.*) \| hermes_nb has none", text):
        assert not [word for word, key in LACKING.items() if word in lacking and key in known]


def test_no_page_names_a_registrys_host():
    hosts = [".".join(host) for host in (("pypi", "org"), ("anaconda", "org"), ("npmjs", "com"))]
    hosts.append("python" + "hosted")
    for page in [*pages(), ROOT / "CHANGELOG.md"]:
        text = page.read_text(encoding="utf-8").lower()
        assert not [host for host in hosts if host in text], page


def document_provider(document: dict) -> str:
    """Return the memory provider that an example chooses, whose settings are its own."""
    own = document.get("hermes_nb", {}).get("memory", {})
    return (own or document.get("memory", {})).get("provider", "")

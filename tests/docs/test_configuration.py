"""The page of settings says what the code says; `python -m tests.docs.test_configuration`."""

from __future__ import annotations

import re

import pytest
import yaml
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.agent.settings.declare import Setting
from hermes_nb.notebook.display.tables import grid

from tests.docs.blocks import ROOT, blocks, pages

PAGE = ROOT / "docs" / "reference" / "configuration.md"
BLOCK = re.compile(r"(<!-- generated: settings ([^>\n]*) -->\n).*?(<!-- /generated -->)", re.DOTALL)
BESIDES = {"fallback_providers", "gateway", "mcp", "mcp_servers", "mixture"}
"""Groups that the page describes in words."""


@pytest.fixture
def declared() -> dict[str, Setting]:
    return load_settings(home="/nonexistent", environ={}).declared


def table(settings: list[Setting]) -> str:
    """Return settings as a Markdown table."""
    rows = [
        (
            f"`{each.key}`",
            each.expected,
            f"`{default}`" if (default := each.text(each.default)) else "–",
            each.description + (f" Hermes Agent's key: `{each.foreign}`." if each.foreign else ""),
        )
        for each in settings
    ]
    return grid(("setting", "values", "default", "what it does"), rows)


def updated(page: str, known: dict[str, Setting]) -> str:
    """Return the page with the tables of its marked blocks made anew."""
    return BLOCK.sub(
        lambda match: f"{match[1]}{table([known[key] for key in match[2].split()])}\n{match[3]}",
        page,
    )


def test_the_page_is_up_to_date_and_has_every_setting_once(declared):
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page, declared) == page, "run python -m tests.docs.test_configuration"
    listed = re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted({*declared, "mcp_servers", "gateway"} - {"mixture"})
    assert [each.key for each in declared.values() if not each.description] == ["mixture"]


@pytest.mark.parametrize(
    "block",
    [b for page in pages() for b in blocks(page) if b.language == "yaml"],
    ids=lambda block: block.where,
)
def test_examples_of_settings_are_accepted(block, home, declared):
    home.mkdir(parents=True)
    document = yaml.safe_load(block.text)
    known = {name for each in declared.values() for name in (each.key, each.foreign) if name}
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
    load_settings(home=home, environ={})


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
def test_pages_say_the_defaults_of_the_table(page, claim, declared):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    said = re.sub(r"{([\w.]+)", r"{0[\1]", claim)
    assert said.format({key: each.default for key, each in declared.items()}) in text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_what_pages_say_of_settings_is_so(page, declared):
    known = {name for each in declared.values() for name in (each.key, each.foreign)}
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


if __name__ == "__main__":
    known = load_settings(home="/nonexistent", environ={}).declared
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), known), encoding="utf-8")

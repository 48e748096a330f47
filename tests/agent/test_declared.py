"""Settings: a value is used as declared, or refused with its key, its source and what is valid."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args, get_origin

import pytest
import yaml
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.agent.settings.declare import Setting, declared
from hermes_nb.core.errors import ConfigError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.docs.installing import install

KNOWN = load_settings(home="/nonexistent", environ={}).declared
WORDS = ["auto", "off", "no", "1h", "10m", "ask", "edits", "landlock", "replay", "0.5", "3", "a, b"]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 100),
        st.integers(-(10**400), 10**400),
        st.floats(),
        st.sampled_from(WORDS),
        st.text(),
        st.dates(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(st.sampled_from(sorted(KNOWN)), VALUES, max_size=5)


def in_use(group: object) -> Iterator[tuple[Setting, object]]:
    """Yield each setting of a dataclass and of those within it, with its value."""
    known = declared(type(group))
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if field.name in known:
            yield known[field.name], value
        elif dataclasses.is_dataclass(value):
            yield from in_use(value)


def is_valid(setting: Setting, value: object) -> bool:
    if value is None:
        return setting.optional
    if get_origin(setting.kind) is Literal:
        return value in get_args(setting.kind)
    if setting.kind in (int, float):
        return setting.least <= value <= setting.most and not isinstance(value, bool)
    return isinstance(value, setting.kind)


def written(home: Path, document: object) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return home


def loaded(document: object) -> Settings | str:
    """Return the settings of a config.yaml, or the message that refuses it."""
    with TemporaryDirectory() as folder:
        try:
            return load_settings(home=written(Path(folder), document), environ={})
        except ConfigError as error:
            return str(error)


@given(DOCUMENTS, st.booleans())
@example({"prompt_caching.cache_ttl": "10m"}, False)
@example({"session_store": "http://[", "web.search_url": "https://x/{query}"}, True)
@example({"memory.provider": "notes", "model": {"default": ["x"]}}, True)
@settings(max_examples=200)
def test_every_document_loads_within_the_bounds_or_is_refused(values, ours):
    document: dict = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        place = document.setdefault(group, {}) if group else document
        place[name] = value
    found = loaded({"hermes_nb": document} if ours else document)
    if isinstance(found, Settings):
        assert [each for each in in_use(found) if not is_valid(*each)] == []
        return
    assert any(found.startswith(key) for key in values), found
    assert any(word in found for word in ("expected", "needs references", "change one")), found
    assert "\n" not in found


@pytest.mark.parametrize("value", ["x", 3, [], ["model"], False])
def test_a_root_key_that_is_no_group_is_refused(value):
    assert f"hermes_nb is {value!r} (config.yaml); expected a group of keys" == loaded(
        {"hermes_nb": value}
    )


@pytest.mark.parametrize("text", ["a: 2020-13-45", "a: " + "[" * 400, "a: 1_000\nb: 0x_"])
def test_a_file_that_yaml_cannot_read_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml is not valid YAML"):
        load_settings(home=tmp_path, environ={})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"compression": {"threshold": 2.0}},
            "compression.threshold is 2.0 (config.yaml); expected 0.05 to 0.95",
        ),
        (
            {"hermes_nb": {"prompt_caching": {"cache_ttl": "10m"}}},
            "prompt_caching.cache_ttl is '10m' (config.yaml, hermes_nb); expected 5m or 1h",
        ),
        (
            {"memory": {"write_approval": "nope"}},
            "memory.write_approval is 'nope' (config.yaml); expected true or false",
        ),
        (
            {"hermes_nb": {"vision": "sometimes"}},
            "vision is 'sometimes' (config.yaml, hermes_nb); expected auto, true or false",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_its_source_and_what_is_valid(home, document, message):
    with pytest.raises(ConfigError) as raised:
        load_settings(home=written(home, document), environ={})
    assert str(raised.value) == message


def test_a_policy_is_checked_like_every_source(home, administered):
    file = administered(settings={"compression.threshold": 7})
    with pytest.raises(ConfigError) as raised:
        load_settings(environ={})
    assert str(raised.value) == (
        f"compression.threshold is 7 (policy {file}); expected 0.05 to 0.95"
    )


def test_values_that_only_hermes_agent_knows_are_no_errors(home):
    """The file is shared: its own approval modes and lists of model families stay as they are."""
    theirs = {"approvals": {"mode": "smart"}, "agent": {"tool_use_enforcement": ["gpt", "codex"]}}
    found = load_settings(home=written(home, theirs), environ={})
    assert (found.approve, found.enforce) == ("ask", None)


SHELF = """
from dataclasses import dataclass
from typing import Annotated
from hermes_nb.agent.settings.declare import Setting

@dataclass(frozen=True)
class Shelf:
    boards: Annotated[int, Setting("{key}", least=1)] = 4
    '''Boards of the shelf.'''
"""


def packaged(monkeypatch, folder: Path, key: str, entry: str) -> None:
    """Make a package findable that declares one setting."""
    folder.mkdir()
    (folder / "shelves.py").write_text(SHELF.format(key=key))
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "shelves"\nversion = "1"\n'
        f'[project.entry-points."hermes_nb.settings"]\nshelf = "{entry}"\n'
    )
    install(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shelves", raising=False)


def test_a_package_has_settings_like_all_others(tmp_path, home, monkeypatch, administered):
    packaged(monkeypatch, tmp_path / "lib", "shelf.boards", "shelves:Shelf")
    written(home, {"hermes_nb": {"shelf": {"boards": 3, "board": 1}}, "approve": "ask"})
    found = load_settings(environ={})
    from shelves import Shelf

    assert found.of(Shelf) == Shelf(boards=3)
    assert found.sources["shelf.boards"] == "config.yaml, hermes_nb"
    assert found.declared["shelf.boards"].description == "Boards of the shelf."
    assert "did you mean `shelf.boards`?" in found.unknown[0]
    assert load_settings(environ={"HERMES_NB_SHELF_BOARDS": "7"}).of(Shelf).boards == 7
    with pytest.raises(ConfigError, match=r"shelf\.boards is 0 \(given here\); expected a whole"):
        load_settings(environ={}, overrides={"shelf.boards": 0})
    administered(settings={"shelf.boards": 2})
    assert load_settings(environ={}).of(Shelf).boards == 2


def test_a_package_cannot_declare_settings_of_others(tmp_path, monkeypatch):
    packaged(monkeypatch, tmp_path / "lib", "sandbox.boards", "shelves:Shelf")
    with pytest.raises(ConfigError, match=r"settings of shelves begin with `shelf\.`"):
        load_settings(environ={})


def test_settings_of_a_package_that_cannot_be_loaded_are_a_warning(tmp_path, monkeypatch):
    packaged(monkeypatch, tmp_path / "lib", "shelf.boards", "nowhere:Shelf")
    found = load_settings(environ={})
    assert "shelf needs nowhere" in found.unknown[0]
    with pytest.raises(ConfigError, match="install its package"):
        found.of(Settings)

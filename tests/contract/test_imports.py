"""The import paths that are promised, with what may be passed to what is behind them.

A promise is kept when every call that was right stays right: parameters keep their names, kinds,
order and defaults; new ones have defaults. The promises stand in `promised.toml`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

API = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
_ = object()

PROMISED = tomllib.loads(Path(__file__).with_name("promised.toml").read_text(encoding="utf-8"))
CALLS, EVENTS, NAMES, WORDS = map(PROMISED.get, ("calls", "events", "names", "words"))


def found(path: str):
    """Return what an import path names, imported as users do."""
    module, dot, name = path.rpartition(".")
    if not dot:
        return import_module(path)
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        return getattr(found(module), name)
    except AttributeError:
        return import_module(path)


def promised(parameters: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {parameters}: None", {"_": _}))


def broken(was: inspect.Signature, now: inspect.Signature) -> list[str]:
    """Return what a call that was right would stumble over."""
    said = []
    places = {name: place for place, name in enumerate(now.parameters)}
    for place, (name, before) in enumerate(was.parameters.items()):
        after = now.parameters.get(name)
        if after is None:
            said.append(f"{name} is gone")
            continue
        widened = before.kind is before.KEYWORD_ONLY and after.kind is after.POSITIONAL_OR_KEYWORD
        if after.kind is not before.kind and not widened:
            said.append(f"{name} is {after.kind.description}, was {before.kind.description}")
        if before.kind in (before.POSITIONAL_ONLY, before.POSITIONAL_OR_KEYWORD):
            said.extend([f"{name} is at another place"] * (places[name] != place))
        if before.default is _:
            said.extend([f"{name} must be given"] * (after.default is after.empty))
        elif after.default != before.default:
            said.append(f"{name} is {after.default!r} by default, was {before.default!r}")
    needed = (
        name
        for name, each in now.parameters.items()
        if name not in was.parameters
        and each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )
    return [*said, *(f"{name} is new and must be given" for name in needed)]


@pytest.mark.parametrize("path", CALLS)
def test_every_call_that_was_right_stays_right(path):
    assert broken(promised(CALLS[path]), inspect.signature(found(path))) == []


@pytest.mark.parametrize("name", EVENTS)
def test_events_keep_their_names_and_fields(name):
    event = found(f"hermes_nb.core.events.{name}")
    assert event.__name__ == name
    assert broken(promised(EVENTS[name]), inspect.signature(event)) == []
    fields = list(promised(EVENTS[name]).parameters)
    assert list(event.__match_args__)[: len(fields)] == fields


@pytest.mark.parametrize("path", NAMES)
def test_names_are_where_they_were(path):
    here = found(path)
    assert [name for name in NAMES[path].split() if not hasattr(here, name)] == []


@pytest.mark.parametrize("path", WORDS)
def test_words_mean_what_they_meant(path):
    assert set(WORDS[path].split()) <= set(get_args(found(path)))


def test_risks_and_kinds_of_failure_keep_their_values():
    from hermes_nb.core.errors import FailureKind, HermesError, ModelError
    from hermes_nb.core.tools import Risk

    values = [(each.name, each.value) for each in Risk]
    kept = [(name, name.lower()) for name in ("READ", "REMEMBER", "WRITE", "EXECUTE", "NETWORK")]
    assert set(kept) <= set(values)
    assert issubclass(ModelError, HermesError)
    assert len(FailureKind) > 0


def test_a_check_that_cannot_fail_is_none():
    was = promised("a, b=1, *, c=_")
    assert broken(was, promised("a, b=1, d=2, *, c=3, e=4")) == []
    for worse in (
        *("a, b=2, *, c=3", "b=1, a=1, *, c=3", "a, b=1", "a, b=1, *, c", "a, b=1, *, c=3, d"),
    ):
        assert broken(was, promised(worse)), worse


def members_named() -> list[tuple[str, list[str]]]:
    """Return what the reference names: import paths, each with its members or with none for all."""
    text = API.read_text(encoding="utf-8")
    named = re.findall(r"auto(?:class|module|function):: (hermes_nb[\w.]*)((?:\n   :.*)*)", text)
    shown = [(path, re.search(r":members: (.+)", options)) for path, options in named]
    return [(path, members[1].split(", ") if members else []) for path, members in shown]


def test_everything_that_the_reference_names_is_there():
    assert len(members_named()) > 25
    for path, members in members_named():
        here = found(path)
        for name in members:
            assert hasattr(here, name), f"{path}.{name}"


def test_tests_of_promises_import_promised_names_alone():
    """What is tested by other paths is no promise, and its tests lie in the folder of its room."""
    whole = {path for path, members in members_named() if not members} | {"hermes_nb"}
    named = {f"{path}.{name}" for path, members in members_named() for name in members}
    named |= {*CALLS, *NAMES, *WORDS, *whole}
    named |= {f"{path}.{name}" for path, names in NAMES.items() for name in names.split()}
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module not in whole:
                imported = [f"{node.module}.{each.name}" for each in node.names]
            ours = {name for name in imported if name.startswith("hermes_nb")}
            assert not ours - named, f"{path}:{node.lineno}"


def test_the_root_gives_what_the_notebook_gives_and_loads_it_late(tmp_path):
    script = (
        "import json, sys, hermes_nb\n"
        "before = 'IPython' in sys.modules\n"
        "from hermes_nb import last_turn, use_model, use_tools\n"
        "from hermes_nb.notebook import magics\n"
        "same = [last_turn, use_model, use_tools] == "
        "[magics.last_turn, magics.use_model, magics.use_tools]\n"
        "print(json.dumps([before, same]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(done.stdout) == [False, True]

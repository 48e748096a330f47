from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

import pytest
from hermes_nb.core.records import restored


@dataclass
class Part:
    kind: Literal["a", "b"] = "a"
    text: str | None = None


@dataclass
class Whole:
    number: int
    at: float = 0.0
    done: bool = False
    parts: tuple[Part, ...] = ()
    named: dict[str, list[Part | None]] = field(default_factory=dict)


def test_what_was_written_is_read():
    whole = Whole(3, 1.5, True, (Part("b", "x"), Part()), {"n": [Part(), None]})
    assert restored(Whole, json.loads(json.dumps(asdict(whole)))) == whole
    assert restored(Whole, {"number": 1, "at": 2}) == Whole(1, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        *({"number": "1"}, {"number": True}, {"number": None}, {"at": "1"}, {"at": float("nan")}),
        *({"at": 10**400}, {"done": 1}, {"parts": {}}, {"parts": [{"kind": "c"}]}, {"named": []}),
        *({"parts": [{"kind": []}]}, {"parts": [5]}, {"named": {"n": [{"more": 1}]}}, {"more": 1}),
    ],
)
def test_what_is_something_else_is_refused(change):
    with pytest.raises(TypeError):
        restored(Whole, {"number": 1, **change})


@pytest.mark.parametrize("value", [None, [], {}, "text", 5])
def test_what_is_no_record_is_refused(value):
    with pytest.raises(TypeError):
        restored(Whole, value)

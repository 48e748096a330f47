"""The group `mixture` of config.yaml: named mixtures of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hermes_nb.agent.settings.endpoints import Place
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.models.installed import EMBEDDED, Composed, Endpoint

PREFIX = "mixture:"
"""Prefix of a mixture's name when it is used as a model name."""
MOST_REFERENCES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A reference model in a mixture."""

    end: Endpoint
    """The model and its server."""
    temperature: float | None = None
    """The temperature for its requests; None for the model's own setting."""
    seconds: float | None = None
    """Its time limit in seconds; None for the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSettings(Composed):
    """One mixture's settings. `answers` is its aggregator."""

    references: tuple[Member, ...]
    """The models that give advice."""


def mixtures(given: Json, place: Place) -> Mapping[str, MixtureSettings]:
    """Return the mixtures, keyed by name: an entry point of `hermes_nb.model_settings`.

    Raises:
        ConfigError: a mixture's settings are invalid.
    """
    return {f"{PREFIX}{name}": _mixture(str(name), group, place) for name, group in given.items()}


def _mixture(name: str, group: Json, place: Place) -> MixtureSettings:
    listed = group.get("references") if isinstance(group, Mapping) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_REFERENCES:
        message = f"mixture.{name} needs references: a list of 1 to {MOST_REFERENCES} models"
        raise ConfigError(message)

    def end(entry: Json) -> Endpoint:
        found = place(entry)
        if found is None or found.model.startswith(PREFIX) or found.model == EMBEDDED:
            message = (
                f"mixture.{name} names {str(entry)[:80]!r}, which is not a known model; add its "
                "base_url"
            )
            raise ConfigError(message)
        return found

    def number(entry: Json, key: str, most: float) -> float | None:
        value = entry.get(key) if isinstance(entry, Mapping) else None
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise ConfigError(f"mixture.{name}: {key} is {value!r}; use a number up to {most:g}")
        return float(value)

    common = number(group, "seconds", 3_600)
    members = tuple(
        Member(
            end=end(entry),
            temperature=number(entry, "temperature", 2),
            seconds=number(entry, "seconds", 3_600) or common,
        )
        for entry in listed
    )
    answers = end(group["aggregator"]) if group.get("aggregator") else None
    asked = (*(member.end for member in members), *((answers,) if answers else ()))
    return MixtureSettings(asked=asked, answers=answers, references=members)

"""Models that packages bring: entry points of the group `hermes_nb.models`.

An entry is a function from a `ModelSetup` to a `ChatModel`; its name is what `%hermes model` takes,
alone or with a variant behind a colon. The built-in model and mixtures come in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import ChatModel, Variable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_nb.models"
SETTINGS_GROUP = "hermes_nb.model_settings"
"""Entry points of readers of the settings of composed models, by their key in config.yaml."""
EMBEDDED = "embedded"
"""The entry that is asked where nothing else is set up."""
_ROOMS = {EMBEDDED: "extras/local", "mixture": "extras/mixture"}
"""Folders of hermes_nb that have the entries of its own, for those who left one out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model and where it is served. An empty `base_url` is the provider's own."""

    model: str = ""
    base_url: str = ""
    api_key: str = field(default="", repr=False)

    @property
    def named(self) -> bool:
        """Whether anything says which model to ask."""
        return bool(self.model or self.base_url or self.api_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The settings of a model that is made of others."""

    asked: tuple[Endpoint, ...]
    """Every model that is sent the conversation."""
    answers: Endpoint | None = None
    """The one of them that the user reads, None where its settings do not say which."""


Role = Literal["answers", "advises"]
Connect = Callable[[Endpoint, Role, Mapping[str, object]], ChatModel]
"""Returns the model of an endpoint, which tries again where that can help.

The one that `answers` has the context window that is set, and its images are described where it
takes none. The mapping has fields of its requests beside those in `model_options`.
"""


def _unconnected(end: Endpoint, *_: object) -> ChatModel:
    raise ConfigError(f"nothing here can ask {end.model!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """What a model is made for."""

    variant: str = ""
    """What the user wrote behind the entry's name and a colon."""
    window: int | None = None
    """The context window in tokens, where the user has set it."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The fields that are set for this model in `model_options`."""
    variables: Callable[[], Sequence[Variable]] = tuple
    """Returns what the user's namespace holds now."""
    composed: Mapping[str, Composed] = field(default_factory=dict)
    """The settings of all models that are made of others, by name (`mixture:careful`)."""
    auxiliary: Mapping[str, Endpoint] = field(default_factory=dict)
    """The models that are set for jobs beside the conversation, by job."""
    main: ChatModel | None = None
    """The conversation's model where this one is made for a question of it; not to be closed."""
    connect: Connect = _unconnected
    """Makes the model of an endpoint."""


def model_names() -> list[str]:
    """Return the names of the models that are built in or installed, the built-in one first."""
    names = {point.name for point in plugins(GROUP)}
    names -= {point.name for point in plugins(SETTINGS_GROUP)}  # which need a variant
    return sorted(names, key=lambda name: (name != EMBEDDED, name))


def is_installed(name: str) -> bool:
    """Say whether a package brings the model of this name."""
    return bool(_entries(name))


def is_added(name: str) -> bool:
    """Say whether another package than hermes_nb brings the model of this name."""
    found = _entries(name)
    return bool(found) and not _is_own(found[0])


def is_composed(name: str) -> bool:
    """Say whether a name is that of a model which the settings make of others."""
    entry, colon, _ = name.partition(":")
    return bool(colon and plugins(SETTINGS_GROUP, entry))


def installed_model(name: str, setup: ModelSetup) -> ChatModel | None:
    """Return the model that goes by a name, None where no package brings one of it.

    Raises `ConfigError` where it cannot be made.
    """
    entry = name.partition(":")[0]
    for point in _entries(name):
        try:
            make = cast("Callable[[ModelSetup], ChatModel]", loaded(point))
            return make(setup)
        except ConfigError:
            raise
        except Exception as error:
            message = f"the model {entry!r} cannot be used: {type(error).__name__}: {error}"
            raise ConfigError(message) from error
    return None


def left_out(name: str) -> str:
    """Return what a model of hermes_nb needs that this installation lacks, "" for any other."""
    entry = name.partition(":")[0]
    if entry not in _ROOMS or is_installed(name):
        return ""
    needed = f"the model {name!r} needs the folder hermes_nb/{_ROOMS[entry]}, which is missing"
    return f"{needed}; install hermes_nb again, or choose another model"


def _entries(name: str) -> list[EntryPoint]:
    """Return the entries that bring a model, those of hermes_nb first."""
    return sorted(plugins(GROUP, name.partition(":")[0]), key=lambda point: not _is_own(point))


def _is_own(point: EntryPoint) -> bool:
    return point.module.startswith("hermes_nb.")

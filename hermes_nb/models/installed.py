"""Models provided by packages: entry points in the group `hermes_nb.models`.

An entry point is a function that takes a `ModelSetup` and returns a `ChatModel`. Its name is the
argument of `%hermes model`, optionally with `:VARIANT`. The built-in model and mixtures are
provided in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import ChatModel, Variable
from hermes_nb.models.profiles import WireName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_nb.models"
SETTINGS_GROUP = "hermes_nb.model_settings"
"""Entry points that read composed models' settings, named after their key in config.yaml."""
EMBEDDED = "embedded"
"""The entry point used when no model is set up."""
_ROOMS = {EMBEDDED: "extras/local", "mixture": "extras/mixture"}
"""Folders of hermes_nb's own entry points, which may be missing from an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model and its server."""

    model: str = ""
    """The model's name; "" if not set."""
    base_url: str = ""
    """URL of the API; "" for the provider's default."""
    api_key: str = field(default="", repr=False)
    """API key; "" if not set."""
    wire: WireName | Literal[""] = ""
    """Protocol to use; "" for the provider and model's usual one."""

    @property
    def named(self) -> bool:
        """Whether any field is set."""
        return bool(self.model or self.base_url or self.api_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The settings of a model composed of other models."""

    asked: tuple[Endpoint, ...]
    """All models that receive the conversation."""
    answers: Endpoint | None = None
    """The model whose answer the user reads; None if the settings don't specify one."""


Role = Literal["answers", "advises"]
Connect = Callable[[Endpoint, Role, Mapping[str, object]], ChatModel]
"""Returns a retrying model for an endpoint.

With the role `answers`, the model has the configured context window, and images are described for
it if it cannot see. The mapping contains request fields to add to those in `model_options`.
"""


Variables = Callable[[], Sequence[Variable]]
"""Returns the variables in the user's namespace, which change while a turn runs."""


def _unconnected(end: Endpoint, *_: object) -> ChatModel:
    raise ConfigError(f"no installed package can use the model {end.model!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """The parameters for creating a model."""

    variant: str = ""
    """The part after the colon in the model's name, or ""."""
    window: int | None = None
    """The context window in tokens if the user has set it."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The request fields set for this model in `model_options`."""
    variables: Variables = tuple
    """Returns the variables in the user's namespace."""
    composed: Mapping[str, Composed] = field(default_factory=dict)
    """The settings of all composed models, by name (`mixture:careful`)."""
    auxiliary: Mapping[str, Endpoint] = field(default_factory=dict)
    """The models configured for auxiliary jobs, by job."""
    main: ChatModel | None = None
    """The conversation's model, if this one is created for a side question; do not close it."""
    connect: Connect = _unconnected
    """Creates an endpoint's model."""


def model_names() -> list[str]:
    """Return the names of the built-in and installed models, the built-in one first."""
    names = {point.name for point in plugins(GROUP)}
    names -= {point.name for point in plugins(SETTINGS_GROUP)}  # these need a variant
    return sorted(names, key=lambda name: (name != EMBEDDED, name))


def is_installed(name: str) -> bool:
    """Return whether a package provides the model with this name."""
    return bool(_entries(name))


def is_added(name: str) -> bool:
    """Return whether a package other than hermes_nb provides the model with this name."""
    found = _entries(name)
    return bool(found) and not _is_own(found[0])


def is_composed(name: str) -> bool:
    """Return whether this is the name of a composed model."""
    entry, colon, _ = name.partition(":")
    return bool(colon and plugins(SETTINGS_GROUP, entry))


def installed_model(name: str, setup: ModelSetup) -> ChatModel | None:
    """Create the model with this name, or None if no package provides it.

    Raises:
        ConfigError: it cannot be created.
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
    """Return a message if the model's folder is missing from this installation, otherwise ""."""
    entry = name.partition(":")[0]
    if entry not in _ROOMS or is_installed(name):
        return ""
    needed = f"the model {name!r} needs the folder hermes_nb/{_ROOMS[entry]}, which is missing"
    return f"{needed}; reinstall hermes_nb, or choose another model"


def _entries(name: str) -> list[EntryPoint]:
    """Return the entry points that provide a model, starting with hermes_nb's own."""
    return sorted(plugins(GROUP, name.partition(":")[0]), key=lambda point: not _is_own(point))


def _is_own(point: EntryPoint) -> bool:
    return point.module.startswith("hermes_nb.")

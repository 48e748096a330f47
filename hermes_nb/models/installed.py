"""Models that packages bring: entry points of the group `hermes_nb.models`, the built-in one first.

An entry is a function from a `ModelSetup` to a `ChatModel`; its name is what `%hermes model` takes,
alone or with a variant behind a colon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import plugins
from hermes_nb.core.protocols import ChatModel, Variable

GROUP = "hermes_nb.models"
EMBEDDED = "embedded"
MIXTURE = "mixture:"
"""What the name of several models that answer as one begins with; the settings say which."""
_SHIPPED = {EMBEDDED: EntryPoint(EMBEDDED, "hermes_nb.extras.local.model:model", GROUP)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """What a model is made for.

    `variant` is what the user wrote behind the entry's name and a colon. `window` is set where the
    user has set the context window, in tokens. `options` are the fields that are set for this model
    in `model_options`. `variables` tells what the user's namespace holds.
    """

    variant: str = ""
    window: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    variables: Callable[[], Sequence[Variable]] = tuple


def model_names() -> list[str]:
    """Return the names of the models that are built in or installed."""
    return list(dict.fromkeys([*_SHIPPED, *(point.name for point in plugins(GROUP))]))


def installed_model(
    name: str,
    *,
    window: int | None = None,
    options: Mapping[str, object] | None = None,
    variables: Callable[[], Sequence[Variable]] = tuple,
) -> ChatModel | None:
    """Return the model that goes by a name, None where no package brings one of it.

    Raises `ConfigError` where it cannot be made.
    """
    entry, _, variant = name.partition(":")
    found = [_SHIPPED[entry]] if entry in _SHIPPED else plugins(GROUP, entry)
    for point in found:
        setup = ModelSetup(
            variant=variant, window=window, options=options or {}, variables=variables
        )
        try:
            model: ChatModel = point.load()(setup)
        except ConfigError:
            raise
        except Exception as error:
            message = f"the model {entry!r} cannot be used: {type(error).__name__}: {error}"
            raise ConfigError(message) from error
        return model
    return None

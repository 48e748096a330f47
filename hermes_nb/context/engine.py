"""Create context engines by name: built-in ones and those from other packages.

A package registers a factory in the entry point group `hermes_nb.context_engines`: a callable that
takes a `Setup` and returns a `ContextEngine`. It is imported only when selected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from hermes_nb.context.archive import Archive
from hermes_nb.context.compressor import BeforeCompress, Compressor, Flush
from hermes_nb.context.policy import CompressionLimits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import plugins
from hermes_nb.core.protocols import ChatModel, ContextEngine, SessionStore

GROUP = "hermes_nb.context_engines"
"""Entry point group for context engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The arguments of an engine factory."""

    model: ChatModel
    """The session's model."""
    store: SessionStore
    """The store that contains the session."""
    session_id: str
    """Id of the session."""
    auxiliary: ChatModel | None = None
    """Model for background work; None to use `model`."""
    window: int | None = None
    """Context window set by the user, in tokens; None to use the model's."""
    limits: CompressionLimits = field(default_factory=CompressionLimits)
    """When to compress, and how much."""
    flush: Flush | None = None
    """Called before messages are dropped, to save memories; None to save none."""
    before_compress: BeforeCompress | None = None
    """Called before messages are dropped, for the memory provider; None if there is no provider."""


Factory = Callable[[Setup], ContextEngine]
"""Creates an engine."""


def make_engine(name: str, setup: Setup) -> ContextEngine:
    """Create the engine with that name.

    Built-in names take priority over those from packages.

    Raises:
        ConfigError: The name is unknown, or the engine can't be created.
    """
    if factory := _SHIPPED.get(name):
        return factory(setup)
    registered = {point.name: point for point in plugins(GROUP)}
    if name not in registered:
        known = ", ".join(engine_names())
        raise ConfigError(
            f"there is no context engine {name!r}; context.engine must be one of {known}"
        )
    try:
        engine: ContextEngine = registered[name].load()(setup)
    except Exception as error:
        message = f"the context engine {name!r} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError(message) from error
    return engine


def engine_names() -> list[str]:
    """Return the names of all engines, built-in ones first."""
    return [*_SHIPPED, *sorted({x.name for x in plugins(GROUP)} - _SHIPPED.keys())]


def _compressor(setup: Setup) -> ContextEngine:
    return Compressor(
        setup.model,
        window=setup.window,
        auxiliary=setup.auxiliary,
        archive=Archive(setup.store, setup.session_id),
        flush=setup.flush,
        before_compress=setup.before_compress,
        **asdict(setup.limits),
    )


def _lossless(setup: Setup) -> ContextEngine:
    from hermes_nb.context.lossless import Lossless

    return Lossless(
        setup.store,
        setup.session_id,
        model=setup.model,
        window=setup.window,
        limits=setup.limits,
    )


_SHIPPED: dict[str, Factory] = {"compressor": _compressor, "lossless": _lossless}

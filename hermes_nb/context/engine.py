"""The engines by name: those that ship, and those that other packages register.

A package registers a factory under the entry point group `hermes_nb.context_engines`: a callable
that takes a `Setup` and returns a `ContextEngine`. Nothing of it is imported before it is chosen.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an engine is made from.

    `model` is the session's, `auxiliary` another one for side work. `window` is what the user set.
    `store` has the session's rows under `session_id`. `flush` and `before_compress` are to run
    before anything is dropped.
    """

    model: ChatModel
    store: SessionStore
    session_id: str
    auxiliary: ChatModel | None = None
    window: int | None = None
    limits: CompressionLimits = field(default_factory=CompressionLimits)
    flush: Flush | None = None
    before_compress: BeforeCompress | None = None


Factory = Callable[[Setup], ContextEngine]


def make_engine(name: str, setup: Setup) -> ContextEngine:
    """Return the engine of that name; raise `ConfigError` when there is none or it cannot be made.

    A name that ships cannot be taken over by a package.
    """
    if factory := _SHIPPED.get(name):
        return factory(setup)
    registered = {point.name: point for point in plugins(GROUP)}
    if name not in registered:
        known = ", ".join(engine_names())
        raise ConfigError(f"there is no context engine {name!r}; context.engine is one of {known}")
    try:
        engine: ContextEngine = registered[name].load()(setup)
    except Exception as error:
        message = f"the context engine {name!r} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError(message) from error
    return engine


def engine_names() -> list[str]:
    """Return the names of all engines, those that ship first."""
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

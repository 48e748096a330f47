"""Builds the model that the settings select.

That is a model at an endpoint or on an accepted local server, or the built-in model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.settings.endpoints import Job, with_keys
from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.escapes import visible
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.models.cassette import CassetteFiles, Deck, shelf_for
from hermes_nb.models.installed import (
    EMBEDDED,
    Endpoint,
    ModelSetup,
    Role,
    Variables,
    installed_model,
    is_added,
    left_out,
)
from hermes_nb.models.profiles import OPENAI, is_address, is_loopback, traits_of
from hermes_nb.safety.administrator import policy

if TYPE_CHECKING:
    from hermes_nb.models.chat.client import OpenAIChat
    from hermes_nb.models.servers import FoundServer


WINDOW_SECONDS = 2.0
"""Seconds to wait for a server to report its model's context window."""
WAYS_OUT = (
    "no model is set up. Run `%hermes key` and `%hermes model NAME` in a notebook, or set "
    "OPENAI_API_KEY (or OPENROUTER_API_KEY) and HERMES_NB_MODEL; "
    "start a local server (Ollama, LM Studio, llama.cpp, vLLM), which a notebook then offers, or "
    "put its address in HERMES_NB_BASE_URL; or use the built-in model: "
    '`pip install "hermes_nb[local]"`, then `python -m hermes_nb.models.weights` downloads it once'
)
"""Error message that explains how to set up a model."""
ACCEPT = "accept it with `%hermes models accept`, or in scripts with HERMES_NB_BASE_URL"
"""Hint on how to accept a local server."""


def build_model(
    settings: Settings, *, variables: Variables = tuple, deck: Deck | None = None
) -> ChatModel:
    """Return the model that the settings select, recorded or replayed by `deck` if it is on.

    Raises `ConfigError` if no model is available, and explains how to set one up. A replay doesn't
    need a model.
    """
    if deck is None:
        made = _model(settings, variables)
    else:
        made = deck.wrap(partial(_model, settings, variables), name=settings.endpoint.model)
    with suppress(TypeError):  # a package's model without weak references
        _OURS.add(made)
    return made


_OURS: WeakSet[ChatModel] = WeakSet()
"""Models built here, already checked against the policy."""


def check_given(model: ChatModel | None) -> None:
    """Raise `ConfigError` if the administrator's policy does not allow a model object.

    The policy lists it as `added:NAME`, like a package's model. No object is allowed if the policy
    sets `model` or `base_url`, because an object can call any server.
    """
    if model is not None and model not in _OURS:
        _check_added(model.name)
        if pinned := {"model", "base_url"} & policy().settings.keys():
            raise ConfigError(
                f"{policy().file} pins `{min(pinned)}`, so model objects are not allowed"
            )


def _check_added(name: str) -> None:
    for family in ("models", "endpoints"):
        policy().check(family, f"added:{name}")


def _check(name: str, address: str) -> None:
    """Raise `ConfigError` if the policy forbids the model, its address or the proxy to it."""
    from hermes_nb.models.servers import proxy_for

    settled = policy()
    if name:
        settled.check("models", name)
    settled.check("endpoints", address)
    if "endpoints" in settled.families and (proxy := proxy_for(address)):
        settled.check("endpoints", f"proxy:{proxy}")


def _check_again(name: str, address: str, then: Callable[[], None] | None) -> None:
    """Raise `ModelError` if the policy no longer allows a request."""
    try:
        _check(name, address)
    except ConfigError as error:
        raise ModelError(str(error), kind=FailureKind.BAD_REQUEST) from error
    if then is not None:
        then()


def build_deck(
    settings: Callable[[], Settings],
    *,
    personal: Callable[[], Sequence[str]],
    notebook: Callable[[], str] = str,
    start: Path | None = None,
) -> Deck:
    """Return the `Deck`, the object that records and replays model replies.

    Args:
        settings: returns the current settings
        personal: returns those layers of the running prompt that come from the Hermes directory
        notebook: returns the notebook's path, or "" if unknown
        start: the initial working directory, used if the notebook is unknown
    """

    def shelf() -> CassetteFiles:
        now = settings()
        return shelf_for(
            notebook=notebook(),
            explicit=now.cassette_file,
            home=now.home,
            mode=deck.mode,
            cwd=start,
        )

    deck = Deck(
        mode=lambda: settings().cassette,
        shelf=shelf,
        home=lambda: settings().home,
        personal=personal,
    )
    return deck


def _model(settings: Settings, variables: Variables) -> ChatModel:
    """Return the model that the settings select, with retries and fallbacks.

    If the settings don't specify a model, use a local server that the user accepted. Raises
    `ConfigError` if no model is available, and explains how to set one up.
    """
    from hermes_nb.models.chat.retries import Fallback

    chosen = settings.endpoint
    first = _installed(chosen.model, settings, variables) if chosen.model else None
    if first is None and chosen.named:
        first = _trying(chosen, settings, sees=True)
    first = first or _accepted(settings) or _built_in(settings, variables)
    if not settings.fallbacks or traits_of(first).small:
        return first
    others = replace(settings, window=None)  # the setting applies to the main model
    return Fallback([first, *(_trying(end, others, sees=True) for end in settings.fallbacks)])


def _connected(
    settings: Settings, end: Endpoint, role: Role, fields: Mapping[str, object]
) -> ChatModel:
    """Return the model at an endpoint as part of a composed model; see `Connect`."""
    answers = role == "answers"
    own = settings if answers else replace(settings, window=None)
    if fields:
        options = {**options_for(end.model, settings.model_options), **fields}
        own = replace(own, model_options={end.model: options})
    return _trying(end, own, sees=answers)


def build_auxiliary(
    settings: Settings, job: Job, *, deck: Deck | None = None, main: ChatModel | None = None
) -> ChatModel | None:
    """Return the model for a job outside the conversation, or None if the settings name none.

    Args:
        settings: the settings
        job: the job
        deck: records or replays the model's replies
        main: the fallback if the model fails permanently. It stays open when the result is closed.
            A small model is not used, because its context window is too short.
    """
    from hermes_nb.models.chat.retries import Fallback

    if job not in settings.auxiliary:
        return None
    end = settings.auxiliary[job]
    make = partial(_trying, end, replace(settings, window=None))
    made = make() if deck is None else deck.wrap(make, name=end.model)
    return made if main is None or traits_of(main).small else Fallback([made, main], own=1)


def for_reviews(
    settings: Settings, main: ChatModel, *, given: bool, deck: Deck
) -> tuple[ChatModel, bool]:
    """Return a model for reviews in another thread, and whether that thread must close it.

    `given` means that `main` belongs to the caller, so that closing the result must not close it.
    """
    from hermes_nb.models.chat.retries import Fallback

    own = build_auxiliary(settings, "reviews", deck=deck)
    if own is None:
        return main, not given
    return Fallback([own, main], own=1 if given else None), True


class Auxiliary:
    """The models for work outside one conversation, each created on first use.

    `given` replaces the models in the settings for compression and recall.
    """

    def __init__(
        self, settings: Settings, *, deck: Deck | None = None, given: ChatModel | None = None
    ) -> None:
        self._settings = settings
        self._deck = deck
        self._given = given
        self._made: dict[tuple[Endpoint | str, int], ChatModel] = {}

    def of(self, job: Job, main: ChatModel) -> ChatModel | None:
        """Return the model for a job, with `main` as its fallback, or None to use `main` itself."""
        if self._given is not None and job in ("compression", "recall"):
            return self._given
        end = self._settings.auxiliary.get(job)
        if end is None:
            return None
        key = end, id(main)
        if key not in self._made:
            made = build_auxiliary(self._settings, job, deck=self._deck, main=main)
            if made is None:
                return None
            self._made[key] = made
        return self._made[key]

    def named(self, name: str, main: ChatModel) -> ChatModel:
        """Return an installed model by its name; it may call `main`.

        Raises `ConfigError` if no package provides it.
        """
        key = name, id(main)
        if key not in self._made:
            from hermes_nb.models.chat.retries import Fallback

            lent = Fallback([main], own=0)
            make = partial(_asked_by, lent, name, self._settings)
            self._made[key] = self._deck.wrap(make, name=name) if self._deck else make()
        return self._made[key]

    async def aclose(self) -> None:
        """Close all models that this object has created, and the given one."""
        made = [*self._made.values(), *([self._given] if self._given is not None else [])]
        self._made.clear()
        for model in made:
            await model.aclose()


def _trying(
    end: Endpoint,
    settings: Settings,
    *,
    sees: bool = False,
    before: Callable[[], None] | None = None,
) -> ChatModel:
    """Return the model at an endpoint, with retries.

    With `sees`, images are described by the vision model if this model does not accept images.
    """
    from hermes_nb.models.chat.retries import Retrying

    address = end.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    chat = _chat(end, address, settings)
    ahead = partial(_check_again, chat.name, address, before)
    made = Retrying(chat, before=ahead, cap=settings.max_wait)
    if not sees or chat.profile.vision or "vision" not in settings.auxiliary:
        return made
    from hermes_nb.models.consulting import WithVision

    eyes = _trying(settings.auxiliary["vision"], replace(settings, window=None, vision=True))
    return WithVision(made, eyes)


def _chat(end: Endpoint, address: str, settings: Settings) -> OpenAIChat:
    from hermes_nb.models.chat.client import OpenAIChat
    from hermes_nb.models.profiles import profile_for, with_wire
    from hermes_nb.models.servers import models_at

    if not is_address(address):
        raise ConfigError(
            f"base_url is {visible(address)!r}; it must be an address such as "
            "http://127.0.0.1:8000/v1"
        )
    _check(end.model, address)
    name = end.model
    if not name and end.base_url:
        served = models_at(end.base_url, api_key=end.api_key, timeout=5.0)
        if not served:
            raise ConfigError(f"{end.base_url} lists no models; set HERMES_NB_MODEL")
        name = served[0]
    if not name:
        raise ConfigError(
            "there is a key but no model; set HERMES_NB_MODEL or run `%hermes model NAME`"
        )
    _check(name, address)
    profile = profile_for(name, address)
    if end.wire:
        profile = with_wire(profile, end.wire, name)
    if settings.vision is not None:
        profile = replace(profile, vision=settings.vision)
    return OpenAIChat(
        name,
        base_url=end.base_url or None,
        api_key=end.api_key or None,
        profile=profile,
        window=settings.window or _served_window(end, name, known=profile.window),
        cache_ttl=settings.cache_ttl,
        options=options_for(name, settings.model_options),
        redacted=settings.redact_requests,
    )


def options_for(name: str, options: Mapping[str, Mapping[str, object]]) -> Mapping[str, object]:
    """Return the request fields set for a model; the longest matching pattern wins."""
    fits = sorted((p for p in options if fnmatchcase(name.lower(), p.lower())), key=len)
    return {field: value for pattern in fits for field, value in options[pattern].items()}


def _served_window(end: Endpoint, name: str, *, known: int | None) -> int | None:
    """Return the context window that a server reports for the model, or None if not asked.

    `known` is the longest window in the model's family. Remote providers mostly support that size.
    Local servers often use a shorter window, so they are asked even if it is known.
    """
    from hermes_nb.models.servers import window_at

    if not end.base_url or (known and not is_loopback(urlsplit(end.base_url).hostname or "")):
        return None
    return window_at(end.base_url, name, api_key=end.api_key, timeout=WINDOW_SECONDS)


def offered_models(settings: Settings, env: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the models served at each address.

    The addresses are the endpoint or the accepted servers, and the providers whose keys are set;
    the models of these are named `PROVIDER/NAME`. Providers that the policy forbids are left out.
    This sends requests to the servers and may take seconds. A server that does not respond is
    listed without models.
    """
    from hermes_nb.models.servers import models_at

    end, local = settings.endpoint, found_servers(settings, known=True)
    ends = {"": end} if end.base_url else {}
    for name, other in with_keys(env).items():
        address = other.base_url or OPENAI
        if address != end.base_url and not policy().why("endpoints", address):
            ends[f"{name}/"] = replace(other, base_url=address)

    def served(prefix: str) -> tuple[str, tuple[str, ...]]:
        asked = ends[prefix]
        names = models_at(asked.base_url, api_key=asked.api_key, timeout=5.0)
        return asked.base_url, tuple(f"{prefix}{name.removeprefix('models/')}" for name in names)

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(served, ends))
    return found + [(each.identity.base_url, each.models) for each in local]


def not_accepted(settings: Settings) -> list[str]:
    """Return a line for each local server found but not accepted, and how to accept it."""
    found = found_servers(settings, known=False)
    return [f"{server_line(served)}: found but not accepted; {ACCEPT}" for served in found]


def server_line(served: FoundServer) -> str:
    """Return a local server as one line, with its owner."""
    known, names = served.identity, served.models
    more = f" and {len(names) - 1} more" if names[1:] else ""
    shown = one_line(visible(names[0]), 60)
    return f"{known.name} at {known.base_url} ({known.owner}; {shown}{more})"


def found_servers(settings: Settings, *, known: bool) -> list[FoundServer]:
    """Return the servers on this machine that the user has accepted (`known`), or the others.

    Servers are asked for their models over loopback; with `known`, only accepted ones. Returns
    nothing if an endpoint or a key is set, or if `local_servers` is off.
    """
    from hermes_nb.models.servers import LOCAL_SERVERS, accepted_in, local_servers

    end = settings.endpoint
    if end.base_url or end.api_key or not settings.local_servers:
        return []
    accepted = accepted_in(settings.home)
    asked = {(each.name, each.base_url) for each in accepted} if known else LOCAL_SERVERS.items()
    found = local_servers(pair for pair in LOCAL_SERVERS.items() if pair in asked)
    return [served for served in found if (served.identity in accepted) == known]


def _accepted(settings: Settings) -> ChatModel | None:
    from hermes_nb.models.servers import check_owner

    for served in found_servers(settings, known=True):
        end = Endpoint(model=served.models[0], base_url=served.identity.base_url)
        before = partial(check_owner, served.identity)
        return _trying(end, settings, sees=True, before=before)
    return None


def _built_in(settings: Settings, variables: Variables) -> ChatModel:
    """Return the built-in model; raise `ConfigError` with alternatives if it is missing."""
    why: ConfigError | None = None
    made = None
    try:
        made = installed_model(EMBEDDED, _setup(EMBEDDED, settings, variables))
    except ConfigError as error:
        why = error
    if made is None:
        raise ConfigError("\n".join([WAYS_OUT, *not_accepted(settings)])) from why
    _check_installed(EMBEDDED)
    return made


def _installed(
    name: str, settings: Settings, variables: Variables = tuple, *, main: ChatModel | None = None
) -> ChatModel | None:
    """Return the model with that name from an installed package, or None if no package has it.

    Raises `ConfigError` if hermes_nb has the model but this installation lacks it.
    """
    made = installed_model(name, _setup(name, settings, variables, main))
    if made is not None:
        _check_installed(name)
    elif why := left_out(name):
        raise ConfigError(why)
    return made


def _setup(
    name: str, settings: Settings, variables: Variables, main: ChatModel | None = None
) -> ModelSetup:
    return ModelSetup(
        variant=name.partition(":")[2],
        window=settings.window,
        options=options_for(name, settings.model_options),
        variables=variables,
        composed=settings.composed,
        auxiliary={str(job): end for job, end in settings.auxiliary.items()},
        main=main,
        connect=partial(_connected, settings),
    )


def _check_installed(name: str) -> None:
    if name == EMBEDDED:
        policy().check("models", EMBEDDED)
    if is_added(name):
        _check_added(name)


def _asked_by(main: ChatModel, name: str, settings: Settings) -> ChatModel:
    """Return an installed model that may call `main`; raise `ConfigError` if it is missing."""
    if (made := _installed(name, settings, main=main)) is None:
        raise ConfigError(f"no installed package provides the model {one_line(name, 40)!r}")
    return made

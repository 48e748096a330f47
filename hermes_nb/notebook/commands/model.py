"""`%hermes model` and `models`: which one answers, and which others are at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hermes_nb.app.config import Endpoint
from hermes_nb.app.models import EMBEDDED, found_servers, not_accepted, offered_models, told
from hermes_nb.core.budget import dollars
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import amount
from hermes_nb.models import prices
from hermes_nb.models.chat.openai_chat import OPENAI
from hermes_nb.models.profiles import EMBEDDED as BUILT_IN
from hermes_nb.models.profiles import profile_for
from hermes_nb.models.servers import accepted_in, remember
from hermes_nb.notebook.display.view import can_ask
from hermes_nb.notebook.display.wording import grid
from hermes_nb.notebook.resident import Resident
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

LISTED = 60
"""Models of one server that are shown."""


@dataclass(frozen=True, slots=True)
class _AtHand:
    name: str
    base_url: str
    what: str


def model(resident: Resident, words: str) -> str:
    """Show or choose the model."""
    if words:
        resident.choose_model(words)
        return f"From the next turn on: {code_span(words)}. The conversation stays."
    name = resident.model_name or resident.settings().endpoint.model
    return f"The model is {code_span(name)}." if name else "It is chosen at the first turn."


async def models(resident: Resident, words: str) -> str:
    """List the models that are set up and what their servers offer; accept or forget a server."""
    word, _, address = words.partition(" ")
    if word == "accept":
        return await _accept(resident)
    if word == "forget":
        return _forget(resident, address.strip())
    settings = resident.settings()
    found = list(_set_up(resident))
    problem = ""
    try:
        served = await in_thread(lambda: offered_models(settings))
        waiting = await in_thread(lambda: not_accepted(settings))
    except OSError as error:
        served, waiting = [], []
        problem = f"\n\nThe server's own list cannot be had: {escape(str(error))}"
    found += [_AtHand(name, url, "offered") for url, names in served for name in names[:LISTED]]
    rows = [_row(each, resident) for each in _once(found)]
    table = grid(("model", "", "window", "tools", "pictures", "$ per million tokens"), rows)
    hint = "" if prices.installed() else ' Prices: `pip install "hermes_nb[prices]"`.'
    blocks = [table, f"`%hermes model NAME` chooses one.{hint}{problem}"]
    blocks += map(escape, waiting)
    if accepted := sorted(accepted_in(settings.home), key=str):
        names = ", ".join(f"{a.name} at {a.base_url} ({a.owner})" for a in accepted)
        blocks.append(f"Accepted: {escape(names)}. `%hermes models forget ADDRESS` takes it back.")
    return "\n\n".join(blocks)


async def _accept(resident: Resident) -> str:
    """Ask about the servers that are found, also those that were declined before."""
    settings = resident.settings()
    if settings.endpoint.named:
        message = "a model is named already, so no server of this machine is looked for"
        raise ConfigError(message)
    if not can_ask(resident.shell):
        message = "nobody can be asked here; name the server in HERMES_NB_BASE_URL or config.yaml"
        raise ConfigError(message)
    await resident.models.offer(again=True)
    resident.change_models()
    in_use = await in_thread(lambda: found_servers(settings, known=True))
    listed = ", ".join(told(served) for served in in_use)
    return f"Accepted: {escape(listed)}." if listed else "No server of this machine is accepted."


def _forget(resident: Resident, address: str) -> str:
    """Take back what was accepted, at one address or all of it."""
    home = resident.settings().home
    gone = [each for each in accepted_in(home) if address in ("", each.base_url)]
    if not gone:
        message = "no such server is accepted; `%hermes models` lists those that are"
        raise ConfigError(message)
    remember(home, (), gone)
    resident.change_models()
    return f"Not accepted any more: {escape(', '.join(each.base_url for each in gone))}."


def _set_up(resident: Resident) -> Iterable[_AtHand]:
    settings = resident.settings()
    if resident.model_name:
        yield _AtHand(resident.model_name, settings.endpoint.base_url, "in use")
    groups: tuple[tuple[str, Iterable[Endpoint | None]], ...] = (
        ("set", [settings.endpoint]),
        ("fallback", settings.fallbacks),
        ("auxiliary", [settings.auxiliary]),
    )
    for what, ends in groups:
        for end in ends:
            if end is not None and end.model and end.model != EMBEDDED:
                yield _AtHand(end.model, end.base_url, what)
    yield _AtHand(BUILT_IN, "", f"`%hermes model {EMBEDDED}`")


def _once(found: Iterable[_AtHand]) -> Iterable[_AtHand]:
    """Return each model once, with the first that is said of it."""
    seen: dict[str, _AtHand] = {}
    for each in found:
        seen.setdefault(each.name, each)
    return seen.values()


def _row(each: _AtHand, resident: Resident) -> tuple[object, ...]:
    if each.name == BUILT_IN:
        return code_span(each.name), each.what, "4.1k", "few", "no", "none: it runs here"
    profile = profile_for(each.name, each.base_url or None)
    vision = resident.settings().vision if each.what in ("set", "in use") else None
    sees = profile.vision if vision is None else vision
    price = prices.rates(each.name, each.base_url or OPENAI)
    return (
        code_span(redact(each.name)),
        each.what,
        amount(profile.window) if profile.window else "?",
        "as text" if profile.strategy == "text" else "yes",
        "yes" if sees else "not known",
        f"{dollars(price[0])} in, {dollars(price[1])} out" if price else "not known",
    )

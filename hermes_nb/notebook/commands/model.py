"""`%hermes model` and `models`: which one answers, and which others are at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hermes_nb.app.amounts import amount
from hermes_nb.app.config import Endpoint
from hermes_nb.app.models import EMBEDDED, offered_models
from hermes_nb.core.budget import dollars
from hermes_nb.core.calls import in_thread
from hermes_nb.models import prices
from hermes_nb.models.chat.openai_chat import OPENAI
from hermes_nb.models.profiles import EMBEDDED as BUILT_IN
from hermes_nb.models.profiles import profile_for
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


async def models(resident: Resident, _words: str) -> str:
    """List the models that are set up, and what their servers offer besides."""
    settings = resident.settings()
    found = list(_set_up(resident))
    problem = ""
    try:
        served = await in_thread(lambda: offered_models(settings))
    except OSError as error:
        served, problem = (), f"\n\nThe server's own list cannot be had: {escape(str(error))}"
    found += [_AtHand(name, url, "offered") for url, names in served for name in names[:LISTED]]
    rows = [_row(each, resident) for each in _once(found)]
    table = grid(("model", "", "window", "tools", "pictures", "$ per million tokens"), rows)
    hint = "" if prices.installed() else ' Prices: `pip install "hermes_nb[prices]"`.'
    return f"{table}\n\n`%hermes model NAME` chooses one.{hint}{problem}"


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

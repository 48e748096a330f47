"""`%hermes model` and `models`: choose and list models."""

from __future__ import annotations

import os
from argparse import Namespace

from hermes_nb.agent.models import found_servers, not_accepted, offered_models, server_line
from hermes_nb.agent.settings.endpoints import named_provider
from hermes_nb.agent.settings.files import read_dotenv
from hermes_nb.core.budget import dollars
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import amount
from hermes_nb.core.threads import in_thread
from hermes_nb.models import profiles
from hermes_nb.models.installed import EMBEDDED, is_installed
from hermes_nb.models.profiles import EMBEDDED as BUILT_IN
from hermes_nb.models.profiles import OPENAI, profile_for, traits_named
from hermes_nb.models.servers import accepted_in, remember
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

LISTED_MODELS = 60
"""Maximum models to list per server."""


def model(agent: KernelAgent, given: Namespace) -> str:
    """Show or choose the model."""
    if words := given.model:
        agent.choose_model(words)
        return f"The next turn uses {code_span(words)}. The conversation continues."
    name = agent.models.name or agent.settings().endpoint.model
    return f"The model is {code_span(name)}." if name else "It is chosen at the first turn."


async def models(agent: KernelAgent, given: Namespace) -> str:
    """List configured models and those that their servers offer; accept or forget a local one."""
    if given.action == "accept":
        return await _accept(agent)
    if given.action == "forget":
        return _forget(agent, given.address)
    settings = agent.settings()
    problem = ""
    try:
        env = {**read_dotenv(settings.home), **os.environ}
        served = await in_thread(offered_models, settings, env)
        waiting = await in_thread(not_accepted, settings)
    except OSError as error:
        served, waiting = [], []
        problem = f"\n\nThe server's list of models is not available: {escape(str(error))}"
    ends = [("set", settings.endpoint), *settings.beside]
    found = [(agent.models.name, settings.endpoint.base_url, "in use")]
    found += [(end.model, end.base_url, what) for what, end in ends]
    found = [each for each in found if each[0] not in ("", EMBEDDED)]
    if is_installed(EMBEDDED):
        found.append((BUILT_IN, "", f"`%hermes model {EMBEDDED}`"))
    found += [(name, "", "several as one") for name in settings.composed]
    found += [(name, url, "offered") for url, names in served for name in names[:LISTED_MODELS]]
    at_hand: dict[str, tuple[str, str]] = {}
    for name, url, what in found:
        at_hand.setdefault(name, (url, what))  # the first entry for a name wins
    rows = [_model_row(agent, name, *about) for name, about in at_hand.items()]
    table = grid(("model", "", "window", "tools", "pictures", "$ per million tokens"), rows)
    newer = "" if profiles.prices_installed() else '; `pip install "hermes_nb[prices]"` has more'
    hint = f" Prices as of {profiles.prices_as_of()}{newer}."
    blocks = [table, f"`%hermes model NAME` chooses one.{hint}{problem}"]
    blocks += map(escape, waiting)
    if accepted := sorted(accepted_in(settings.home), key=str):
        names = ", ".join(f"{a.name} at {a.base_url} ({a.owner})" for a in accepted)
        blocks.append(f"Accepted: {escape(names)}. `%hermes models forget ADDRESS` undoes that.")
    return "\n\n".join(blocks)


async def _accept(agent: KernelAgent) -> str:
    settings = agent.settings()
    if settings.endpoint.named:
        raise ConfigError(
            "the settings already name a model, so servers on this machine are not used"
        )
    if not can_ask(agent.shell):
        message = "not interactive: name the server in HERMES_NB_BASE_URL or config.yaml"
        raise ConfigError(message)
    await agent.models.offer(again=True)
    agent.change_models()
    in_use = await in_thread(found_servers, settings, known=True)
    listed = ", ".join(server_line(served) for served in in_use)
    return f"Accepted: {escape(listed)}." if listed else "No server on this machine is accepted."


def _forget(agent: KernelAgent, address: str) -> str:
    """Forget the accepted server at one address, or all accepted servers."""
    home = agent.settings().home
    gone = [each for each in accepted_in(home) if address in ("", each.base_url)]
    if not gone:
        raise ConfigError("no such server is accepted; `%hermes models` lists those that are")
    remember(home, (), gone)
    agent.change_models()
    return f"No longer accepted: {escape(', '.join(each.base_url for each in gone))}."


def _model_row(agent: KernelAgent, name: str, base_url: str, what: str) -> tuple[object, ...]:
    if traits_named(name).local:
        return code_span(name), what, "4.1k", "few", "no", "none: it runs here"
    end = named_provider(name, os.environ)
    plain = end.model if end and end.base_url in ("", base_url) else name
    profile = profile_for(plain, base_url or None)
    vision = agent.settings().vision if what in ("set", "in use") else None
    sees = profile.vision if vision is None else vision
    price = profiles.rates(plain, base_url or OPENAI)
    return (
        code_span(redact(name)),
        what,
        amount(profile.window) if profile.window else "?",
        "as text" if profile.strategy == "text" else "yes",
        "yes" if sees else "not known",
        f"{dollars(price[0])} in, {dollars(price[1])} out" if price else "not known",
    )

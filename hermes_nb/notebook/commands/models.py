"""`%hermes model`, `models`, `key`, `tools`, `approve`, `cassette`, `config`: how turns run."""

from __future__ import annotations

import difflib
import getpass
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import yaml

from hermes_nb.agent.models import found_servers, not_accepted, offered_models, told
from hermes_nb.agent.settings.config import APPROVE_MODES, Settings
from hermes_nb.agent.settings.dotenv import read_dotenv, write_dotenv
from hermes_nb.agent.settings.endpoints import PROVIDERS
from hermes_nb.core.budget import dollars
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import amount, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.models import profiles
from hermes_nb.models.cassette import MODES, Mode, mode_named
from hermes_nb.models.installed import EMBEDDED, Endpoint, is_installed
from hermes_nb.models.profiles import EMBEDDED as BUILT_IN
from hermes_nb.models.profiles import OPENAI, profile_for, traits_named
from hermes_nb.models.servers import accepted_in, remember
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.commands.doctor import tried
from hermes_nb.notebook.display.tables import facts, grid
from hermes_nb.notebook.display.views import can_ask
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.line import ADVICE, forget
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.models.cassette_file import Tape
    from hermes_nb.models.recording import Recording


LISTED_MODELS = 60
"""Models of one server that are shown."""


def model(agent: KernelAgent, words: str) -> str:
    """Show or choose the model."""
    if words:
        agent.choose_model(words)
        return f"From the next turn on: {code_span(words)}. The conversation stays."
    name = agent.models.name or agent.settings().endpoint.model
    return f"The model is {code_span(name)}." if name else "It is chosen at the first turn."


async def models(agent: KernelAgent, words: str) -> str:
    """List the models that are set up and what their servers offer; accept or forget a server."""
    word, _, address = words.partition(" ")
    if word == "accept":
        return await _accept(agent)
    if word == "forget":
        return _forget(agent, address.strip())
    settings = agent.settings()
    problem = ""
    try:
        served = await in_thread(offered_models, settings)
        waiting = await in_thread(not_accepted, settings)
    except OSError as error:
        served, waiting = [], []
        problem = f"\n\nThe server's own list cannot be had: {escape(str(error))}"
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
        at_hand.setdefault(name, (url, what))  # each once, with the first that is said of it
    rows = [_model_row(agent, name, *about) for name, about in at_hand.items()]
    table = grid(("model", "", "window", "tools", "pictures", "$ per million tokens"), rows)
    newer = "" if profiles.prices_installed() else '; `pip install "hermes_nb[prices]"` has more'
    hint = f" Prices are of {profiles.prices_as_of()}{newer}."
    blocks = [table, f"`%hermes model NAME` chooses one.{hint}{problem}"]
    blocks += map(escape, waiting)
    if accepted := sorted(accepted_in(settings.home), key=str):
        names = ", ".join(f"{a.name} at {a.base_url} ({a.owner})" for a in accepted)
        blocks.append(f"Accepted: {escape(names)}. `%hermes models forget ADDRESS` takes it back.")
    return "\n\n".join(blocks)


async def _accept(agent: KernelAgent) -> str:
    settings = agent.settings()
    if settings.endpoint.named:
        raise ConfigError("a model is named already, so no server of this machine is looked for")
    if not can_ask(agent.shell):
        message = "nobody can be asked here; name the server in HERMES_NB_BASE_URL or config.yaml"
        raise ConfigError(message)
    await agent.models.offer(again=True)
    agent.change_models()
    in_use = await in_thread(found_servers, settings, known=True)
    listed = ", ".join(told(served) for served in in_use)
    return f"Accepted: {escape(listed)}." if listed else "No server of this machine is accepted."


def _forget(agent: KernelAgent, address: str) -> str:
    """Take back what was accepted, at one address or all of it."""
    home = agent.settings().home
    gone = [each for each in accepted_in(home) if address in ("", each.base_url)]
    if not gone:
        raise ConfigError("no such server is accepted; `%hermes models` lists those that are")
    remember(home, (), gone)
    agent.change_models()
    return f"Not accepted any more: {escape(', '.join(each.base_url for each in gone))}."


def _model_row(agent: KernelAgent, name: str, base_url: str, what: str) -> tuple[object, ...]:
    if traits_named(name).local:
        return code_span(name), what, "4.1k", "few", "no", "none: it runs here"
    profile = profile_for(name, base_url or None)
    vision = agent.settings().vision if what in ("set", "in use") else None
    sees = profile.vision if vision is None else vision
    price = profiles.rates(name, base_url or OPENAI)
    return (
        code_span(redact(name)),
        what,
        amount(profile.window) if profile.window else "?",
        "as text" if profile.strategy == "text" else "yes",
        "yes" if sees else "not known",
        f"{dollars(price[0])} in, {dollars(price[1])} out" if price else "not known",
    )


NAME = re.compile(r"[A-Z][A-Z_]*_(?:KEY|TOKEN)")
OTHERS = {"sk-ant-": "Anthropic", "gsk_": "Groq", "AIza": "Google", "xai-": "xAI"}
"""How keys begin that must not go to OpenAI, and whose they are."""


async def key(agent: KernelAgent, words: str) -> str:
    """Ask for a key, keep it in the home's `.env`, and say what its server makes of it."""
    name = f"{words.upper()}_API_KEY" if words.lower() in PROVIDERS else words
    if name and not NAME.fullmatch(name):  # so it may be the key itself
        forget(agent.shell)
        raise ConfigError(ADVICE)
    agent.permission.check("ask for a key")
    if not can_ask(agent.shell):
        raise ConfigError(
            "a prompt asks for the key, and nobody can answer one here: set "
            f"{name or 'OPENAI_API_KEY'} where the kernel is started"
        )
    asked = f"{name or 'API key'} (not shown, kept in .env of your Hermes home): "
    value = (ask_user(asked, read=getpass.getpass) or "").strip()
    if not value:
        return "No key was typed, so nothing has changed."
    if not (value.isascii() and value.isprintable()):
        raise ConfigError("the key holds what cannot be sent; copy it again. Nothing was kept")
    name = name or _name_of(value, agent.settings())
    told = await in_thread(_keep, agent, name, value)
    agent.change_models()
    return told.replace(value, "[key]")


def _name_of(value: str, settings: Settings) -> str:
    """Return the variable that a key belongs in; raise `ConfigError` where that is not plain."""
    if value.startswith("sk-or-"):
        return "OPENROUTER_API_KEY"
    whose = next((whose for begins, whose in OTHERS.items() if value.startswith(begins)), "")
    if whose and not settings.endpoint.base_url:
        raise ConfigError(
            f"this looks like a key of {whose}, and would go to OpenAI: set base_url to {whose}'s "
            "address first, or name the variable: `%hermes key NAME`. Nothing was kept"
        )
    return "OPENAI_API_KEY"


def _keep(agent: KernelAgent, name: str, value: str) -> str:
    """Write the key and try it; one that is refused goes again, and the one before comes back."""
    home = agent.settings().home
    before = read_dotenv(home).get(name)
    try:
        write_dotenv(home, name, value)
        settings = agent.settings()
        ends = [settings.endpoint, *(end for _, end in settings.beside)]
        end = next((end for end in ends if end.api_key == value), None)
        if end is None and name == "OPENROUTER_API_KEY":
            end = Endpoint(base_url=PROVIDERS["openrouter"], api_key=value)
        kind, _, found = (
            tried(end) if end else (None, "", "No model that is set up is asked with it")
        )
        if kind == "refused":
            write_dotenv(home, name, before)
            message = f"{found.replace(value, '[key]')}. Nothing was kept; `%hermes key` asks again"
            raise ConfigError(message)
    except OSError as error:
        message = f"{home / '.env'} cannot be written ({error.strerror or error})"
        raise ConfigError(message) from error
    kept = f"Kept as {code_span(name)} in {code_span(str(home / '.env'))}, for you alone."
    told = [kept, f"{escape(found)}."]
    if os.environ.get(name, value) != value:
        told.append(f"But {code_span(name)} of this kernel's environment is another, and counts.")
    if end is not None and not end.model:
        told.append("`%hermes models` lists what there is, `%hermes model NAME` chooses one.")
    return " ".join(told)


DOES: dict[Mode, str] = {
    "record": "every request is asked and recorded",
    "replay": "recorded replies are played, nothing is asked",
    "auto": "what is recorded is played, the rest is asked and recorded",
    "off": "nothing is recorded or played",
}
WORDS = (*MODES, "accept")
LISTED_RECORDINGS = 10
"""Recordings and damaged lines that are listed."""


def cassette(agent: KernelAgent, words: str) -> str:
    """Show what is recorded and replayed, switch it, prune it, or accept what was edited."""
    match words.split():
        case [] | ["status"]:
            return _status(agent)
        case ["prune"]:
            return _prune(agent)
        case ["accept"]:
            tape = agent.deck.tape
            return f"{tape.accept()} edited answers of {code_span(str(tape.path))} count now."
        case [word] if word.lower() in MODES:
            return _switch(agent, mode_named(word))
    message = f"{one_line(words, 40)!r} is neither status, prune nor one of {', '.join(WORDS)}"
    raise ConfigError(message)


def _switch(agent: KernelAgent, mode: Mode) -> str:
    agent.switch_cassette(mode)
    told = f"Cassette: **{mode}**: {DOES[mode]}."
    if mode == "off":
        return told
    lines = [f"{told} The file is {code_span(str(agent.deck.tape.path))}."]
    if agent.models.given:
        lines.append("The model in use was handed over as an object; it is not on the cassette.")
    if agent.session is not None:
        lines.append("A story begins at its beginning: restart the kernel and run all cells.")
    return " ".join(lines)


def _status(agent: KernelAgent) -> str:
    deck = agent.deck
    if not deck.on:
        return "Cassette: **off**. `%hermes cassette auto` records and replays this notebook."
    tape = deck.tape
    recordings, unused = tape.recordings, tape.unused()
    models = dict.fromkeys(each.model for each in recordings if each.model)
    rows = [
        ("mode", f"{deck.mode}: {DOES[deck.mode]}"),
        ("file", str(tape.path)),
        ("recordings", f"{len(recordings)}, of {', '.join(models) or 'no model'}"),
        ("this run", f"{tape.used} used, {len(unused)} not"),
    ]
    blocks = [facts(rows)]
    if tape.used and unused:
        blocks.append(_listed("Without use in this run", tape, unused))
    if problems := tape.problems:
        lines = [escape(one_line(problem, 160)) for problem in problems[:LISTED_RECORDINGS]]
        blocks.append("\n".join(["Damaged lines:", "", *(f"- {line}" for line in lines)]))
    if deck.last_miss is not None:
        blocks.append(f"The last miss:\n\n{code_block(str(deck.last_miss))}")
    return "\n\n".join(blocks)


def _prune(agent: KernelAgent) -> str:
    deck = agent.deck
    if not deck.on or not deck.tape.used:
        raise ConfigError(
            "nothing was recorded or replayed in this run, so all would go; "
            "restart the kernel, run all cells, then prune"
        )
    gone = deck.tape.unused()
    listed = _listed("Taken out", deck.tape, gone) if gone else ""
    count = deck.tape.prune()
    told = f"{count} recordings that this run had no use for are gone, {deck.tape.used} are left."
    return "\n\n".join(filter(None, [told, listed]))


def _listed(title: str, tape: Tape, recordings: Sequence[Recording]) -> str:
    lines = [f"- {escape(_gist(tape, each))}" for each in recordings[:LISTED_RECORDINGS]]
    if (more := len(recordings) - LISTED_RECORDINGS) > 0:
        lines.append(f"- and {more} more")
    return "\n".join([f"{title}:", "", *lines])


def _gist(tape: Tape, recording: Recording) -> str:
    message = recording.reply.message
    said = message.text or ", ".join(f"{call.name}(…)" for call in message.calls)
    asked = ""
    for link in tape.conversation(recording):
        parts = link.said.get("parts")
        if link.said.get("role") == "user" and isinstance(parts, list) and parts:
            asked = str(parts[0])
    return f"“{one_line(asked, 60)}” → {one_line(said, 60)}"


SECRET = ("api_key",)
DEFAULT = "default"
"""The word that takes back what was set for this kernel."""


def config(agent: KernelAgent, words: str) -> str:
    """Show the settings, one of them, or set one until the kernel ends."""
    key, _, value = words.strip().partition(" ")
    settings = agent.settings()
    if not key:
        rows = (_setting_row(settings, name) for name in sorted(settings.values))
        table = grid(("setting", "value", "from"), rows)
        return (
            f"{table}\n\n`%hermes config KEY VALUE` sets one until the kernel ends, "
            f"`KEY {DEFAULT}` takes that back. For good: `hermes_nb:` in "
            f"{code_span(str(settings.home / 'config.yaml'))}."
        )
    if key not in settings.values:
        near = difflib.get_close_matches(key, settings.values, n=1)
        hint = f"did you mean {near[0]}?" if near else "`%hermes config` lists them"
        raise ConfigError(f"there is no setting {key!r}; {hint}")
    if value:
        if key in SECRET:
            message = f"{key} is not set in a notebook; it belongs in the environment or in .env"
            raise ConfigError(message)
        agent.configure(key, _value(value.strip()))
        settings = agent.settings()
    return grid(("setting", "value", "from"), [_setting_row(settings, key)])


def _value(text: str) -> object:
    """Return what is meant by a setting's text, None for taking back what was set."""
    if text == DEFAULT:
        return None
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    # `off` and `none` are words here; what is a switch reads them itself
    return text if isinstance(value, bool) or value is None else value


def _setting_row(settings: Settings, key: str) -> tuple[str, str, str]:
    value = settings.values[key]
    if key in SECRET:
        shown = "set, not shown" if value else ""
    elif isinstance(value, Mapping):
        shown = ", ".join(map(str, value))
    else:
        shown = "" if value is None or value == () else str(value)
    source = settings.sources.get(key, "default")
    text = escape(one_line(visible(redact(shown)), 80))
    return code_span(key), text, escape("this kernel" if source == "given here" else source)


def tools(agent: KernelAgent, words: str) -> str:
    """Show the tools, or choose among them."""
    chosen = agent.tools_in_use.choose(words) if words else agent.tools_in_use.chosen()
    rows = [
        (code_span(t.name), t.toolset, t.risk.value, escape(one_line(t.description, 80)))
        for t in chosen
    ]
    return grid(("tool", "toolset", "risk", "what it does"), rows)


def approve(agent: KernelAgent, words: str) -> str:
    """Show or set the approval mode."""
    if words:
        agent.configure("approve", words)
    return f"Approvals: **{agent.settings().approve}** (of {', '.join(APPROVE_MODES)})."

"""`%hermes config`, `key`, `tools` and `approve`: the settings of turns."""

from __future__ import annotations

import difflib
import getpass
import os
import re
from argparse import Namespace
from urllib.parse import urlsplit

import yaml

from hermes_nb.agent.settings.config import APPROVE_MODES, Settings
from hermes_nb.agent.settings.declare import Setting
from hermes_nb.agent.settings.endpoints import PROVIDERS, key_variable
from hermes_nb.agent.settings.files import read_dotenv, write_dotenv
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.commands.doctor import request_models
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.keys import ADVICE, forget
from hermes_nb.notebook.shell import can_ask
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

NAME = re.compile(r"[A-Z][A-Z_]*_(?:KEY|TOKEN)")
"""Names of environment variables that contain keys."""
BEGINS = {
    "sk-or-": "openrouter",
    "sk-ant-": "anthropic",
    "gsk_": "groq",
    "AIza": "gemini",
    "xai-": "xai",
}
"""Prefixes that identify a key's provider."""


async def key(agent: KernelAgent, given: Namespace) -> str:
    """Ask for a key, save it to the home's `.env`, and report whether its server accepts it."""
    words = given.action or given.variable
    known = PROVIDERS.get(words.lower())
    name = known.key if known else words
    # Any other word may be the key itself.
    if name and not NAME.fullmatch(name) and name not in _needed(agent):
        forget(agent.shell)
        raise ConfigError(ADVICE)
    if not can_ask(agent.shell):
        raise ConfigError(
            f"not interactive, so no key can be entered here; set {name or 'OPENAI_API_KEY'} "
            "in the environment of the kernel"
        )
    asked = f"{name or 'API key'} (hidden; saved in .env in your Hermes directory): "
    value = (ask_user(asked, read=getpass.getpass) or "").strip()
    if not value:
        return "No key was typed, so nothing has changed."
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(
            "the key contains characters that cannot be sent; copy it again. Nothing was saved"
        )
    name = name or _name_of(value, agent.settings())
    told = await in_thread(_keep, agent, name, value)
    agent.change_models()
    return told.replace(value, "[key]")


def _needed(agent: KernelAgent) -> set[str]:
    """Return the environment variables that skills require."""
    return {name for skill in agent.knowledge.library.list() for name in skill.environment}


def _name_of(value: str, settings: Settings) -> str:
    """Return a key's environment variable, chosen by its prefix or the server in use."""
    host = urlsplit(settings.endpoint.base_url).hostname or ""
    for begins, provider in BEGINS.items():
        if value.startswith(begins) and (not host or provider == "openrouter"):
            return PROVIDERS[provider].key
    return key_variable(host, os.environ)


def _keep(agent: KernelAgent, name: str, value: str) -> str:
    """Save a key and try it; if it is rejected, restore the previous one and raise."""
    home = agent.settings().home
    before = read_dotenv(home).get(name)
    try:
        write_dotenv(home, name, value)
        settings = agent.settings()
        ends = [settings.endpoint, *(end for _, end in settings.beside)]
        end = next((end for end in ends if end.api_key == value), None)
        if end is None:
            theirs = (known for known in PROVIDERS.values() if known.key == name)
            end = next((known.endpoint("", {name: value}) for known in theirs), None)
        kind, _, found = request_models(end) if end else (None, "", "No configured model uses it")
        if kind == "refused":
            write_dotenv(home, name, before)
            message = (
                f"{found.replace(value, '[key]')}. Nothing was saved; `%hermes key` asks again"
            )
            raise ConfigError(message)
    except OSError as error:
        message = f"{home / '.env'} cannot be written ({error.strerror or error})"
        raise ConfigError(message) from error
    kept = f"Saved as {code_span(name)} in {code_span(str(home / '.env'))}, readable only by you."
    parts = [kept, f"{escape(found)}."]
    if end is None and name in _needed(agent):
        os.environ.setdefault(name, value)
        parts = [kept, "A skill requires it, so it is also set in this kernel's environment."]
    if os.environ.get(name, value) != value:
        parts.append(
            f"But {code_span(name)} in this kernel's environment is different and takes precedence."
        )
    if end is not None and not end.model:
        parts.append("`%hermes models` lists the models, `%hermes model NAME` selects one.")
    return " ".join(parts)


DEFAULT = "default"
"""The word that resets one of this kernel's settings."""


def config(agent: KernelAgent, words: str) -> str:
    """Show one or all settings, or change one until the kernel ends."""
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
    setting = settings.declared.get(key)
    if value:
        if setting is None or setting.file_only:
            raise ConfigError(f"{key} can only be set in config.yaml")
        if setting.secret:
            message = f"{key} cannot be set in a notebook; set it in the environment or in .env"
            raise ConfigError(message)
        agent.configure(key, _value(value.strip()))
        settings = agent.settings()
    table = grid(("setting", "value", "from"), [_setting_row(settings, key)])
    if setting is None or not setting.description:
        return table
    default = setting.text(setting.default)
    valid = f"Values: {setting.expected}." + (f" Default: {default}." if default else "")
    return f"{table}\n\n{setting.description} {escape(valid)}"


def _value(text: str) -> object:
    """Parse a setting's text as YAML; return None to reset it."""
    if text == DEFAULT:
        return None
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    # keep `off` and `none` as text: the settings that accept them parse it themselves
    return text if isinstance(value, bool) or value is None else value


def _setting_row(settings: Settings, key: str) -> tuple[str, str, str]:
    value, setting = settings.values[key], settings.declared.get(key, Setting(key))
    shown = "set, not shown" if setting.secret and value else setting.text(value)
    source = settings.sources.get(key, "default")
    text = escape(one_line(visible(redact(shown)), 80))
    return code_span(key), text, escape("this kernel" if source == "given here" else source)


def tools(agent: KernelAgent, given: Namespace) -> str:
    """List the tools, or choose which to use."""
    words = given.action or given.tools
    spec = agent.spec(agent.settings())
    chosen = agent.tools_in_use.choose(spec, words) if words else agent.tools_in_use.chosen(spec)
    rows = [
        (code_span(t.name), t.toolset, t.risk.value, escape(one_line(t.description, 80)))
        for t in chosen
    ]
    return grid(("tool", "toolset", "risk", "what it does"), rows)


def approve(agent: KernelAgent, given: Namespace) -> str:
    """Show or set the approval mode."""
    if given.action:
        agent.configure("approve", given.action)
    return f"Approvals: **{agent.settings().approve}** (of {', '.join(APPROVE_MODES)})."

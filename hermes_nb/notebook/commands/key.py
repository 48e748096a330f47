"""`%hermes key`: asks for a provider's key where nobody sees it, keeps it in the home, tries it."""

from __future__ import annotations

import getpass
import os
import re

from hermes_nb.app.config import PROVIDERS, Endpoint, Settings
from hermes_nb.app.home import read_dotenv, write_dotenv
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.commands.endpoints import tried
from hermes_nb.notebook.display.view import can_ask
from hermes_nb.notebook.keys import ADVICE, forget
from hermes_nb.notebook.resident import Resident
from hermes_nb.safety.markup import code_span, escape

NAME = re.compile(r"[A-Z][A-Z_]*_(?:KEY|TOKEN)")
OTHERS = {"sk-ant-": "Anthropic", "gsk_": "Groq", "AIza": "Google", "xai-": "xAI"}
"""How keys begin that must not go to OpenAI, and whose they are."""


async def key(resident: Resident, words: str) -> str:
    """Ask for a key, keep it in the home's `.env`, and say what its server makes of it."""
    name = f"{words.upper()}_API_KEY" if words.lower() in PROVIDERS else words
    if name and not NAME.fullmatch(name):  # so it may be the key itself
        forget(resident.shell)
        raise ConfigError(ADVICE)
    resident.permission.check("ask for a key")
    if not can_ask(resident.shell):
        message = (
            "a prompt asks for the key, and nobody can answer one here: set "
            f"{name or 'OPENAI_API_KEY'} where the kernel is started"
        )
        raise ConfigError(message)
    asked = f"{name or 'API key'} (not shown, kept in .env of your Hermes home): "
    value = (ask_user(asked, read=getpass.getpass) or "").strip()
    if not value:
        return "No key was typed, so nothing has changed."
    if not (value.isascii() and value.isprintable()):
        message = "the key holds what cannot be sent; copy it again. Nothing was kept"
        raise ConfigError(message)
    name = name or _name_of(value, resident.settings())
    told: str = await in_thread(lambda: _keep(resident, name, value))
    resident.change_models()
    return told.replace(value, "[key]")


def _name_of(value: str, settings: Settings) -> str:
    """Return the variable that a key belongs in; raise `ConfigError` where that is not plain."""
    if value.startswith("sk-or-"):
        return "OPENROUTER_API_KEY"
    whose = next((whose for begins, whose in OTHERS.items() if value.startswith(begins)), "")
    if whose and not settings.endpoint.base_url:
        message = (
            f"this looks like a key of {whose}, and would go to OpenAI: set base_url to {whose}'s "
            "address first, or name the variable: `%hermes key NAME`. Nothing was kept"
        )
        raise ConfigError(message)
    return "OPENAI_API_KEY"


def _keep(resident: Resident, name: str, value: str) -> str:
    """Write the key and try it; one that is refused goes again, and the one before comes back."""
    home = resident.settings().home
    before = read_dotenv(home).get(name)
    try:
        write_dotenv(home, name, value)
        settings = resident.settings()
        ends = [settings.endpoint, *settings.fallbacks, *filter(None, [settings.auxiliary])]
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

"""Checks that the models which the settings name can be asked: address, key and name are tried.

It costs nothing: each server is asked for the list of its models, with a short time limit. Every
finding says what to do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from hermes_nb.app.config import Endpoint, Settings
from hermes_nb.app.models import EMBEDDED
from hermes_nb.models.addresses import is_address
from hermes_nb.models.chat.reaching import SECONDS, Kind, Reached, proxy_for, reach
from hermes_nb.models.servers import LOCAL_SERVERS
from hermes_nb.notebook.commands.installed import Finding, State
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

OPENAI = "https://api.openai.com/v1"
NEAR = 3
"""Names that are offered in the place of one that is not served."""
KEYS = "`%hermes key` asks for one and keeps it; or set OPENAI_API_KEY in the environment"


def endpoints(settings: Settings, *, timeout: float = SECONDS) -> list[Finding]:
    """Return what came of asking each server that is named; none in a replay.

    Blocks for at most a few times `timeout` seconds for each, and imports the SDK.
    """
    if settings.cassette == "replay":
        return []
    named = [("answer", settings.endpoint)]
    named += [("fallback", end) for end in settings.fallbacks]
    named += [("auxiliary", settings.auxiliary)] if settings.auxiliary is not None else []
    asked = [(name, tried(end, timeout)[1:]) for name, end in named if _asks_somebody(end)]
    return [Finding(name, state, told) for name, (state, told) in asked]


def _asks_somebody(end: Endpoint) -> bool:
    return end.model != EMBEDDED and end.named


def tried(end: Endpoint, timeout: float = SECONDS) -> tuple[Kind | None, State, str]:
    """Return what came of asking a server, None where it was not, and what that means."""
    address = end.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    key = end.api_key or ("" if end.base_url else os.environ.get("OPENAI_API_KEY", ""))
    shown = visible(redact(address))
    if not is_address(address):
        return None, "problem", f"{shown!r} is no address; it looks like https://HOST/v1"
    if address == OPENAI and not key:
        return None, "problem", f"{shown} wants a key and there is none; {KEYS}"
    if not (key.isascii() and key.isprintable()):
        return None, "problem", f"the key holds what cannot be sent; copy it again, {KEYS}"
    found = reach(address, api_key=key, timeout=timeout)
    state, told = _means(found, end, shown, has_key=bool(key))
    return found.kind, state, redact(visible(told))


def _means(found: Reached, end: Endpoint, address: str, *, has_key: bool) -> tuple[State, str]:
    """Return how good or bad it is, and what to do."""
    match found.kind:
        case "listed":
            return _listed(found.models, end.model, address, has_key=has_key)
        case "refused" if has_key:
            return "problem", f"{address}: {found.problem}; copy the key again, and {KEYS}"
        case "refused":
            return "problem", f"{address} wants a key and there is none; {KEYS}"
        case "no leave":
            told = f"{address} answers, but does not let this key list models: {found.problem}"
            return "note", f"{told}; whether a turn may use it shows at the first one"
        case "no list":
            if _ends_well(address):
                told = "answers and lists no models, so key and model could not be tried"
                return "note", f"{address} {told}"
            return "problem", f"{address} is not where models are served; {_v1(address)}"
        case _:
            return "problem", f"{address}: {found.problem}; {_way_out(found, address)}"


def _listed(
    models: Sequence[str], wanted: str, address: str, *, has_key: bool
) -> tuple[State, str]:
    taken = "answers and takes the key" if has_key else "answers"
    if not wanted or _served(wanted, models):
        has = f", and has {wanted}" if wanted else f", {len(models)} models"
        return "ok", f"{address} {taken}{has}"
    if not models:
        return "problem", f"{address} {taken}, but it serves no model: load one there"
    near = difflib.get_close_matches(wanted, models, n=NEAR, cutoff=0.5) or list(models[:NEAR])
    told = f"{address} {taken}, but {wanted} is not among its {len(models)} models"
    return (
        "problem",
        f"{told}, such as {', '.join(near)}; set HERMES_NB_MODEL to one of them",
    )


def _served(wanted: str, models: Sequence[str]) -> bool:
    """Say whether a name is one of those listed, which may carry a folder before or a tag behind.

    `gemini-x` is listed as `models/gemini-x`, `llama3` as `llama3:latest`, `a/b:free` as `a/b`.
    """
    known = {form for name in models for form in (name, name.partition(":")[0])}
    known |= {name.removeprefix("models/") for name in known}
    return wanted in known or wanted.partition(":")[0] in models


def _ends_well(address: str) -> bool:
    last = address.rstrip("/").rpartition("/")[2]
    return last.startswith("v") and last[1:2].isdigit()


def _v1(address: str) -> str:
    return f"try {address.rstrip('/')}/v1" if not _ends_well(address) else "is the address right?"


def _way_out(found: Reached, address: str) -> str:
    if proxy := proxy_for(address):
        return f"requests go through the proxy {proxy} (HTTPS_PROXY, NO_PROXY)"
    if "certificate" in found.problem:
        return "where a proxy of yours signs, SSL_CERT_FILE names its certificates"
    if "web page" in found.problem or "no list" in found.problem:
        return _v1(address)
    if address in LOCAL_SERVERS.values():
        return "start it, or `%hermes model embedded`"
    return "`%hermes model embedded` needs neither server nor network"

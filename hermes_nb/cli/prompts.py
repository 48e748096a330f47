"""`jupyter hermes run PROMPT`: one turn in a session, from a shell or a script."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from hermes_nb.app.config import load_settings
from hermes_nb.app.models import embedded_notice
from hermes_nb.app.opening import Opening
from hermes_nb.cli.asking import TerminalApprover, ask_on_terminal
from hermes_nb.cli.ending import FAILED, MISSED, OK, REFUSED, STOPPED, UsageProblem
from hermes_nb.cli.event_lines import line_of
from hermes_nb.cli.misses import is_miss
from hermes_nb.cli.sessions import found
from hermes_nb.core.events import Event, MessageAdded, TurnEnded
from hermes_nb.core.text import one_line
from hermes_nb.notebook.consent import offer_servers
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.view import terminal_view
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

Show = Callable[[Event], None]


def run(prompt: str, arguments: argparse.Namespace) -> int:
    """Take the turn, show it, and return the exit code."""
    if not prompt.strip():
        message = "the prompt is empty"
        raise UsageProblem(message)
    names = ("model", "approve", "max_requests", "cassette")
    settings = load_settings(overrides={name: getattr(arguments, name) for name in names})
    wanted: str = arguments.session or ""
    opening = Opening(
        settings,
        approver=TerminalApprover(),
        tell=_warn,
        source="terminal",
        joined=lambda store: found(store, wanted) if wanted else None,
    )
    if sys.stdin.isatty():
        asyncio.run(offer_servers(settings, ask_on_terminal, set()))
    seen = Transcript()
    turn = _turn(prompt, opening, wanted or prompt, seen, as_json=arguments.json)
    ending = asyncio.run(turn)
    for call in seen.refused:
        _warn(f"refused: {call}")
    if ending is None or ending.reason == "interrupted":
        _warn("stopped")
        return STOPPED
    if ending.reason == "answered":
        return REFUSED if seen.refused else OK
    _warn(redact(visible(ending.error or "the turn's budget was spent before it was done")))
    return MISSED if is_miss(ending.error) else FAILED


async def _turn(
    prompt: str, opening: Opening, title: str, seen: Transcript, *, as_json: bool
) -> TurnEnded | None:
    """Return how the turn ended, None when it was stopped before it began; `seen` follows it."""
    ending = None
    try:
        with stoppable():
            session = opening.session(one_line(title, 60))
            if told := embedded_notice(session.agent.model):
                _warn(told)
            seen.model, seen.describe = session.agent.model.name, session.agent.tools.describe
            show, finish = _shower(seen, as_json=as_json)
            try:
                async with aclosing(session.turn(prompt)) as events:
                    async for event in events:
                        show(event)
                        ending = event if isinstance(event, TurnEnded) else None
            finally:
                finish()
    finally:
        await opening.aclose()
    return ending


def _shower(seen: Transcript, *, as_json: bool) -> tuple[Show, Callable[[], None]]:
    """Return what shows each event and what ends that: JSON, a live view, or the answer alone."""
    if as_json:

        def tell(event: Event) -> None:
            seen(event)
            print(json.dumps(line_of(event)), flush=True)

        return tell, lambda: None
    if sys.stdout.isatty():
        view = terminal_view(seen)
        return view, view.close
    said: list[str] = []

    def keep(event: Event) -> None:
        seen(event)
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            said[:] = [event.message.text] if event.message.text else said

    return keep, lambda: _print(said)


def _print(said: Sequence[str]) -> None:
    for text in said:
        print(redact(visible(text, lines=True)), flush=True)


def _warn(text: Any) -> None:  # noqa: ANN401 - Markdown of ours
    print(str(text).replace("`", "").replace("**", ""), file=sys.stderr, flush=True)

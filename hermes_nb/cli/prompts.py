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
from hermes_nb.app.session import Session
from hermes_nb.cli.asking import TerminalApprover
from hermes_nb.cli.ending import FAILED, MISSED, OK, STOPPED, UsageProblem
from hermes_nb.cli.event_lines import line_of
from hermes_nb.cli.misses import is_miss
from hermes_nb.cli.sessions import found
from hermes_nb.core.events import Event, MessageAdded, TurnEnded
from hermes_nb.core.text import one_line
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
    ending = asyncio.run(_turn(prompt, opening, wanted or prompt, as_json=arguments.json))
    if ending is None or ending.reason == "interrupted":
        _warn("stopped")
        return STOPPED
    if ending.reason == "answered":
        return OK
    _warn(redact(visible(ending.error or "the turn's budget was spent before it was done")))
    return MISSED if is_miss(ending.error) else FAILED


async def _turn(prompt: str, opening: Opening, title: str, *, as_json: bool) -> TurnEnded | None:
    """Return how the turn ended, None when it was stopped before it began."""
    ending = None
    try:
        with stoppable():
            session = opening.session(one_line(title, 60))
            if told := embedded_notice(session.agent.model):
                _warn(told)
            show, finish = _shower(session, as_json=as_json)
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


def _shower(session: Session, *, as_json: bool) -> tuple[Show, Callable[[], None]]:
    """Return what shows each event and what ends that: JSON, a live view, or the answer alone."""
    if as_json:
        return lambda event: print(json.dumps(line_of(event)), flush=True), lambda: None
    if sys.stdout.isatty():
        transcript = Transcript(model=session.agent.model.name)
        transcript.describe = session.agent.tools.describe
        view = terminal_view(transcript)
        return view, view.close
    said: list[str] = []

    def keep(event: Event) -> None:
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            said[:] = [event.message.text] if event.message.text else said

    return keep, lambda: _print(said)


def _print(said: Sequence[str]) -> None:
    for text in said:
        print(redact(visible(text, lines=True)), flush=True)


def _warn(text: Any) -> None:  # noqa: ANN401 - Markdown of ours
    print(str(text).replace("`", "").replace("**", ""), file=sys.stderr, flush=True)

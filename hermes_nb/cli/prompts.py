"""`jupyter hermes run PROMPT`: one turn in a session, from a shell or a script."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from hermes_nb.app.build import (
    build_auxiliary,
    build_deck,
    build_model,
    embedded_notice,
    open_store,
)
from hermes_nb.app.config import Settings, load_settings
from hermes_nb.app.equipment import Equipment, Identity
from hermes_nb.app.session import Session
from hermes_nb.app.workshop import Workshop
from hermes_nb.cli.asking import TerminalApprover
from hermes_nb.cli.ending import FAILED, MISSED, OK, STOPPED, UsageProblem
from hermes_nb.cli.event_lines import line_of
from hermes_nb.cli.misses import is_miss
from hermes_nb.cli.sessions import find
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import Event, MessageAdded, TurnEnded
from hermes_nb.core.protocols import SessionStore
from hermes_nb.core.text import one_line
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.notebook.transcript import Transcript
from hermes_nb.notebook.view import TerminalView
from hermes_nb.safety.guard import Guard
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
    store = open_store(settings, _warn)
    try:
        ending = asyncio.run(_turn(prompt, settings, store, arguments))
    finally:
        store.close()
    if ending is None or ending.reason == "interrupted":
        _warn("stopped")
        return STOPPED
    if ending.reason == "answered":
        return OK
    _warn(redact(visible(ending.error or "the turn's budget was spent before it was done")))
    return MISSED if is_miss(ending.error) else FAILED


async def _turn(
    prompt: str, settings: Settings, store: SessionStore, arguments: argparse.Namespace
) -> TurnEnded | None:
    """Return how the turn ended, None when it was stopped before it began."""
    ending = None
    opened: list[Session] = []
    try:
        with stoppable():
            session = _session(prompt, settings, store, arguments.session, opened)
            show, finish = _shower(session, as_json=arguments.json)
            try:
                turn = session.turn(prompt, max_requests=settings.max_requests)
                async with aclosing(turn) as events:
                    async for event in events:
                        show(event)
                        ending = event if isinstance(event, TurnEnded) else None
            finally:
                finish()
    finally:
        for session in opened:
            await session.agent.model.aclose()
    return ending


def _session(
    prompt: str, settings: Settings, store: SessionStore, name: str, opened: list[Session]
) -> Session:
    """Return a new session, or the one of that name, begun if there is none."""
    deck = build_deck(lambda: settings, personal=lambda: opened[0].personal if opened else ())
    workshop = Workshop(
        settings,
        root=Path.cwd(),
        store=store,
        guard=Guard(settings.approve),
        approver=TerminalApprover(),
        session=lambda: opened[0] if opened else None,
        tell=_warn,
    )
    model = build_model(settings, deck=deck)
    if told := embedded_notice(model):
        _warn(told)
    equipment = workshop.equipment(model, auxiliary=build_auxiliary(settings, deck=deck))
    opened.append(_joined(name, store, equipment) or _started(name or prompt, store, equipment))
    return opened[0]


def _joined(name: str, store: SessionStore, equipment: Equipment) -> Session | None:
    if not name:
        return None
    try:
        stored = find(store, name)
    except ConfigError:
        return None
    return Session.resume(stored, store=store, equipment=equipment, warn=_warn)


def _started(title: str, store: SessionStore, equipment: Equipment) -> Session:
    identity = Identity(source="terminal", title=one_line(title, 60))
    return Session.start(store=store, equipment=equipment, identity=identity, warn=_warn)


def _shower(session: Session, *, as_json: bool) -> tuple[Show, Callable[[], None]]:
    """Return what shows each event and what ends that: JSON, a live view, or the answer alone."""
    if as_json:
        return lambda event: print(json.dumps(line_of(event)), flush=True), lambda: None
    if sys.stdout.isatty():
        transcript = Transcript(model=session.agent.model.name)
        transcript.describe = session.agent.tools.describe
        view = TerminalView(transcript)
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

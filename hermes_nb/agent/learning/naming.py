"""Generates a session's title after its first turn, with the auxiliary model for titles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import aclosing

from hermes_nb.agent.models import build_auxiliary
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.errors import HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import TITLE, head_tail, one_line
from hermes_nb.memory.recall import spoken
from hermes_nb.safety.redact import redact

logger = logging.getLogger(__name__)

ENTITLE = "Name this conversation in six words at most, in its language, and say nothing else."


def named_after_turn(session: Session, settings: Settings) -> Coroutine[object, None, None] | None:
    """Return a coroutine that titles a session after its first turn, or None."""
    if session.agent.turns != 1 or "titles" not in settings.auxiliary:
        return None
    return _entitle(
        session, settings, [redact(spoken(m)) for m in session.messages if m.role != "tool"]
    )


async def _entitle(session: Session, settings: Settings, said: Sequence[str]) -> None:
    """Generate a title for a session whose title is still the start of its first prompt."""
    store, session_id = session.store, session.id
    model = await asyncio.to_thread(build_auxiliary, settings, "titles")
    stored = await asyncio.to_thread(store.get, session_id)
    if model is None or stored is None or not said or stored.title != one_line(said[0], TITLE):
        return
    asked = Message.user("\n\n".join(head_tail(text, 2_000) for text in (said[0], said[-1])))
    try:
        request = Request(messages=(Message.system(ENTITLE), asked))
        async with aclosing(model.stream(request)) as items:
            replies = [item async for item in items if isinstance(item, Reply)]
        for reply in replies:
            title = one_line(redact(visible(reply.message.text)).strip(" \"'.*#"), TITLE)
            await asyncio.to_thread(session.spend, reply.usage, reply.model, "titles")
            if title:
                await asyncio.to_thread(store.rename, session_id, title)
    except HermesError as error:
        logger.warning(
            "the session keeps its first title, because no other could be generated: %s", error
        )
    finally:
        await model.aclose()

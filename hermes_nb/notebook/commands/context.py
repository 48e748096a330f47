"""`%hermes context`, `compress` and `reload`: context window usage."""

from __future__ import annotations

from argparse import Namespace

from hermes_nb.agent.session.context_usage import shares
from hermes_nb.agent.session.session import Session
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import ContextCompressed
from hermes_nb.core.text import amount, capitalised, one_line, used
from hermes_nb.notebook.display.bars import MARK, gauge, shade, stacked
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.display.transcript import told_compression
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact

NO_TURN = "this session has no turn yet; send a prompt in a `%%hermes` cell first"


def context(agent: KernelAgent, given: Namespace) -> str:
    """Show the parts of the next request, or one prompt layer in full."""
    if (session := agent.session) is None:
        return f"{capitalised(NO_TURN)}."
    parts = shares(session)
    if name := given.layer.lower():
        known = {part.name: part.text for part in parts if part.text}
        if text := known.get(name):
            return f"**{escape(name)}**\n\n{code_block(redact(text))}"
        raise ConfigError(f"there is no layer {name!r} in this prompt; it has {', '.join(known)}")
    total = sum(part.tokens for part in parts)
    rows = [
        (
            *(code_span(shade(n)), escape(part.name), part.kind, amount(part.tokens)),
            f"{100 * part.tokens / total:.0f} %" if total else "",
        )
        for n, part in enumerate(parts)
    ]
    lines = [
        code_span(stacked([part.tokens for part in parts])),
        grid(("", "part", "of the", "tokens", "share"), rows),
        *_gauge(session, total),
    ]
    lines += [_compression_report(event) for event in session.compressions]
    lines.append("`%hermes context LAYER` shows a layer's text. Tokens are estimates.")
    return "\n\n".join(lines)


async def compress(agent: KernelAgent, given: Namespace) -> str:
    """Compress the conversation now, or undo the last compression."""
    session = _session(agent)
    if given.undo:
        return _compression_report(session.restore())
    event = await session.compress(given.focus)
    return (
        "The conversation is too short to compress."
        if event is None
        else _compression_report(event)
    )


def reload(agent: KernelAgent, _given: Namespace) -> str:
    """Rebuild the system prompt."""
    session = _session(agent)
    before = session.prompt
    after = session.reload()
    if before.text == after.text:
        return "The prompt is unchanged."
    old = {layer.name: layer.text for layer in before.layers}
    new = {layer.name: layer.text for layer in after.layers}
    changed = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    return f"The prompt was rebuilt. Changed: {escape(', '.join(changed))}."


def _session(agent: KernelAgent) -> Session:
    if agent.session is None:
        raise ConfigError(NO_TURN)
    return agent.session


def _gauge(session: Session, total: int) -> list[str]:
    """Return context window usage, as a bar if its size is known, and total usage."""
    window = session.agent.model.window or 0
    of = f" of {amount(window)} ({100 * total / window:.0f} %)" if window else ""
    line = f"**Next request: about {amount(total)} tokens**{of}."
    engine = session.agent.engine
    threshold = getattr(getattr(engine, "gauge", None), "threshold", None) or 0
    if threshold:
        line += f" Compressed from {amount(threshold)} on{f' (at {MARK})' if window else ''}."
    if told := used(session.usage):
        line += f" Sent here so far: {', '.join(told)}."
    bar = gauge(total, window, threshold)
    return [line, code_span(bar)] if bar else [line]


def _compression_report(event: ContextCompressed) -> str:
    line, summary = told_compression(event), redact(event.summary)
    if not summary:
        return line
    gist = escape(one_line(summary, 120))
    block = f"<details><summary>{gist}</summary>\n\n{code_block(summary)}\n\n</details>"
    return f"{line}\n\n{block}"

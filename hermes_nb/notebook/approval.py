"""Asks the user before a call runs: buttons where a page answers, else `input()`, else the policy.

Everything shown comes from a model, and a widget's HTML is trusted: all of it is escaped. What
stays in the notebook after the answer is one line of plain Markdown.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.older import comms_heard
from hermes_nb.notebook.view import can_ask, has_kernel
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

NOBODY = (
    "nobody can be asked here, so it was not run; "
    "`%hermes approve all` or HERMES_NB_APPROVE=all allows such calls"
)
RELOADED = (
    "the page was reloaded during this turn and cannot show the question; say what you wanted to "
    "do, so that the user can ask again"
)
QUESTION = "Run it? [y]es, [a]lways here, [n]o, or say why not: "
GIST = 90
"""Characters of a call that the line kept in the notebook shows."""
REASON_SECONDS = 0.5
"""Enter and the text it sends are two messages; the second may be this much later."""

STYLE = """<style>
.hermes-ask{border:1px solid var(--jp-border-color1);border-left:3px solid var(--jp-warn-color1);
padding:8px 10px;margin:6px 0;background:var(--jp-layout-color1);color:var(--jp-ui-font-color1)}
.hermes-ask .widget-html,.hermes-ask .widget-html-content{margin:0;height:auto;line-height:1.5;
font-size:var(--jp-ui-font-size1);color:var(--jp-ui-font-color1)}
.hermes-ask .hermes-head{display:flex;gap:8px;align-items:baseline;justify-content:space-between}
.hermes-ask .hermes-dim{color:var(--jp-ui-font-color2)}
.hermes-ask .hermes-code{font:12.5px/1.5 var(--jp-code-font-family);max-height:20em;overflow:auto;
background:var(--jp-layout-color2);color:var(--jp-content-font-color1);margin:6px 0;padding:6px 0}
.hermes-ask .hermes-code div{padding:0 8px;white-space:pre-wrap;overflow-wrap:anywhere;
min-height:1.5em}
.hermes-ask .hermes-add{background:color-mix(in srgb,var(--jp-success-color1) 18%,transparent)}
.hermes-ask .hermes-del{background:color-mix(in srgb,var(--jp-error-color1) 18%,transparent)}
.hermes-ask .widget-hbox{gap:8px;margin-top:6px;overflow:visible}
.hermes-ask button.jupyter-button{width:auto;height:26px;line-height:24px;padding:0 12px;margin:0;
font-size:var(--jp-ui-font-size1);border:1px solid var(--jp-border-color1);border-radius:2px;
background:var(--jp-layout-color1);color:var(--jp-ui-font-color1);box-shadow:none;max-width:30em}
.hermes-ask button.jupyter-button:hover{background:var(--jp-layout-color2)}
.hermes-ask button.jupyter-button.mod-primary{background:var(--jp-brand-color1);
border-color:var(--jp-brand-color1);color:var(--jp-ui-inverse-font-color1)}
.hermes-ask button.jupyter-button.mod-primary:hover{background:var(--jp-brand-color0)}
.hermes-ask button.jupyter-button:focus-visible{outline:2px solid var(--jp-brand-color1);
outline-offset:1px}
.hermes-ask .widget-text{flex:1;margin:0;height:26px}
.hermes-ask .widget-text input{height:26px}
</style>"""


class CellApprover:
    """Asks below the cell, or refuses where no one can answer."""

    def __init__(self, shell: Any, frontend: FrontEnd | None = None) -> None:  # noqa: ANN401 - IPython
        self._shell = shell
        self._frontend = frontend or FrontEnd(shell)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer; anything but yes or always is a refusal and its reason."""
        if not can_ask(self._shell):
            return Approval("deny", NOBODY)
        page = await self._frontend.probe()
        if self._frontend.reloaded:
            return Approval("deny", RELOADED)
        if page is not None and page.widgets:
            return await ask_with_buttons(request)
        self._show(request)
        answer = ask_user(QUESTION)
        return Approval("deny", NOBODY) if answer is None else _parse(answer)

    def _show(self, request: ApprovalRequest) -> None:
        title = f"Hermes wants to use {request.tool.name}"
        if has_kernel(self._shell):
            from IPython.display import display

            language = {"terminal": "bash", "run_python": "python"}.get(request.tool.name, "text")
            block = code_block(request.shown, language)
            markdown = f"**{title}** · {request.why}\n\n{block}"
            display({"text/markdown": markdown, "text/plain": _plain(title, request)}, raw=True)
        else:
            print(_plain(title, request), flush=True)  # noqa: T201 - a terminal's way to ask


async def ask_with_buttons(request: ApprovalRequest) -> Approval:
    """Show the question as a box with buttons, wait for a click, leave one line in its place.

    A cancellation (the stop button) closes the box too, and passes through.
    """
    from IPython.display import display

    box = Box(request)
    handle = display(box.root, display_id=True)
    outcome = "stopped"
    try:
        async with comms_heard(told=True):
            approval = await box.answer()
        outcome = _outcome(approval)
        return approval
    finally:
        gist = one_line(redact(visible(_gist(request))), GIST)
        line = {"text/markdown": f"{code_span(gist)} · {escape(outcome)}"}
        handle.update(line | {"text/plain": f"{gist} · {outcome}"}, raw=True)
        box.close()


class Box:
    """The question as a widget. Its texts are escaped, its colours are the theme's."""

    def __init__(self, request: ApprovalRequest) -> None:
        import ipywidgets

        self._answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        once, always = _labels(request)
        self._buttons = [
            self._button(once, "primary", lambda: self._give(Approval("once"))),
            self._button(always, "", lambda: self._give(Approval("always"))),
            self._button("Deny…", "", self._ask_why),
        ]
        self._buttons[1].tooltip = f"do not ask again for this in this notebook: {_gist(request)}"
        self._reason = ipywidgets.Text(
            placeholder="Why not? Hermes reads it. Enter sends, empty is fine.",
            tooltip="Why not? (optional)",
            continuous_update=False,
        )
        # On ipykernel 7.4 a comm's messages reach a busy kernel without the `idle` that ends each
        # of them, and a widget holds its next value back until it has seen that. On the page's own
        # subshell there is one; clicks are never held back and need no such detour.
        if hasattr(self._reason.comm, "_reply_subshell_for"):
            self._reason.comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001
        self._reason.on_msg(self._on_reason)
        self._send = self._button("Deny", "", self._deny)
        self._row = ipywidgets.HBox(self._buttons)
        self.root = ipywidgets.VBox([ipywidgets.HTML(STYLE + _question(request)), self._row])
        self.root.add_class("hermes-ask")

    async def answer(self) -> Approval:
        """Wait for the user."""
        return await self._answer

    def close(self) -> None:
        """End every widget of the box, in the page and here."""
        for widget in [*self._buttons, self._reason, self._send, *self.root.children, self.root]:
            for part in (getattr(widget, "style", None), widget.layout, widget):
                if part is not None:
                    part.close()

    def _button(self, label: str, style: str, action: Callable[[], None]) -> Any:  # noqa: ANN401
        import ipywidgets

        button = ipywidgets.Button(description=label, button_style=style)
        button.on_click(lambda _: self._threadsafe(action))
        return button

    def _give(self, approval: Approval) -> None:
        if not self._answer.done():
            self._answer.set_result(approval)

    def _ask_why(self) -> None:
        """Put the line for the reason in the buttons' place."""
        self._row.children = [self._reason, self._send]
        self._reason.focus()

    def _deny(self) -> None:
        self._give(Approval("deny", self._reason.value.strip()))

    def _on_reason(self, _widget: object, content: Any, _buffers: object) -> None:  # noqa: ANN401
        if isinstance(content, dict) and content.get("event") == "submit":
            self._reason.observe(lambda _: self._threadsafe(self._deny), "value")
            self._threadsafe(lambda: self._loop.call_later(REASON_SECONDS, self._deny))

    def _threadsafe(self, action: Callable[[], object]) -> None:
        """Run an action on the turn's loop: a click may arrive on a subshell's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(action)


def ask_user(question: str) -> str | None:
    """Return what the user types, None where the input has ended.

    It blocks the event loop, as a question is meant to; the stop button still raises
    KeyboardInterrupt in it.
    """
    with user_code():
        try:
            return input(question).strip()
        except EOFError:
            return None


def _plain(title: str, request: ApprovalRequest) -> str:
    return f"{title} ({request.why}):\n{request.shown}"


def _parse(answer: str) -> Approval:
    word = answer.lower()
    if word in ("y", "yes"):
        return Approval("once")
    if word in ("a", "always"):
        return Approval("always")
    reason = "" if word in ("", "n", "no") else answer
    return Approval("deny", reason)


def _question(request: ApprovalRequest) -> str:
    """Return the box's text as HTML."""
    tool = request.tool
    wish = {"terminal": "run a command", "run_python": "run code"}.get(tool.name, "")
    if not wish:
        wish = {"files": "change files", "notebook": "change this notebook"}.get(tool.toolset, "")
    if tool.risk not in (Risk.WRITE, Risk.EXECUTE) or not wish:
        wish = f"use {tool.name}"
    lines = visible(request.shown, lines=True).split("\n")
    diff = tool.risk is Risk.WRITE and any(line[:1] in ("+", "-") for line in lines)
    shown = "".join(_line(line, diff=diff) for line in lines)
    return (
        f'<div class="hermes-head" role="alert"><b>Hermes wants to {_text(wish)}</b>'
        f'<span class="hermes-dim">{_text(tool.name)}</span></div>'
        f'<div class="hermes-code" role="region" aria-label="What would run" tabindex="0">'
        f'{shown}</div><div class="hermes-dim">Asks because {_text(request.why)}.</div>'
    )


def _line(line: str, *, diff: bool) -> str:
    header = line.startswith(("--- ", "+++ "))
    kind = {"+": "hermes-add", "-": "hermes-del"}.get(line[:1], "") if diff and not header else ""
    return f'<div class="{kind}">{_text(line)}</div>'


def _text(text: str) -> str:
    return html.escape(visible(text, lines=True))


def _labels(request: ApprovalRequest) -> tuple[str, str]:
    """Return what the buttons for "once" and "always" say."""
    once = {Risk.WRITE: "Apply", Risk.EXECUTE: "Run once"}.get(request.tool.risk, "Allow once")
    if request.shape == request.tool.name:
        return once, f"Always {visible(request.tool.name)} here"
    return once, f"Always “{one_line(visible(_gist(request)), 32)}” here"


def _gist(request: ApprovalRequest) -> str:
    """Return what the call is about, in a few words: its command, its code, its files."""
    arguments = request.call.arguments
    names = ("command", "code", *request.tool.paths)
    found = [str(arguments[name]) for name in names if arguments.get(name)]
    told = request.tool.describe(arguments) if request.tool.describe else ""
    return " ".join(found) or f"{request.tool.name} {told}".strip()


def _outcome(approval: Approval) -> str:
    if approval.answer == "deny":
        return f"denied: {redact(visible(approval.reason))}" if approval.reason else "denied"
    return "allowed once" if approval.answer == "once" else "allowed from now on"

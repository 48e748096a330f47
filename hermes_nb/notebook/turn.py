"""A turn in a cell: what is wished of it, how it is shown, what it came to and how its cell ends.

What a user can do about a turn that failed is the second half of the line that its cell ends with.
Which failure it was is told by how its text begins, in the words of `models.chat.errors`; scripts
and the command line have other ways out, so the words for a notebook are here.

With `--dry-run` the request that the turn would begin with is shown and not sent: nothing is
stored, no session begins or ends, no counter moves. Expressions are evaluated.
"""

from __future__ import annotations

import json
import keyword
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hermes_nb.agent.prompt_sources import PromptSources, preface_of
from hermes_nb.agent.session.context_usage import schema_tokens, text_tokens
from hermes_nb.agent.session.session import Identity, Session, SessionSpec, compose
from hermes_nb.agent.session.turn import Turn, turn_of
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Event, TurnEnded, TurnStarted
from hermes_nb.core.loop import LOST_RESULT
from hermes_nb.core.messages import Json, Message, mend
from hermes_nb.core.protocols import (
    ChatModel,
    Effort,
    Request,
    SessionStore,
    StoredSession,
    body_of,
)
from hermes_nb.core.text import amount, estimate_tokens, head_tail, one_line
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.models.installed import Endpoint
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import (
    CellView,
    FinalView,
    StatusView,
    TerminalView,
    View,
    can_ask,
    can_draw,
    has_kernel,
)
from hermes_nb.notebook.execute.nested import showing
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_reload import rejoined, widgets_live
from hermes_nb.notebook.shell import Shell, ours
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.guard import Mode
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.tools.wrappers import with_context


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """One turn's wishes; None, "" and () mean: as it is.

    `images` are expressions, `into` is the name of a variable, `system` goes behind the system
    prompt and the messages of the file `prefill` before the conversation. `limits` hold for
    this turn alone.
    """

    model: str = ""
    tools: str = ""
    session: str = ""
    new: bool = False
    context: bool = True
    max_requests: int | None = None
    limits: Limits = field(default_factory=Limits)
    approve: Mode | None = None
    effort: Effort = ""
    images: tuple[str, ...] = ()
    system: str = ""
    prefill: str = ""
    into: str = ""
    quiet: bool = False
    dry_run: bool = False

    def check(self, prompt: str) -> None:
        """Raise `ConfigError` for what can be seen to be wrong before anything happens."""
        if not prompt.strip():
            raise ConfigError("the prompt is empty; write it below %%hermes or behind %hermes")
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            raise ConfigError(f"--into {self.into!r} is not a variable's name; nothing was sent")
        if self.approve:
            policy().check("modes", self.approve)

    def preface(self) -> Preface:
        """Return what goes with the requests of this turn alone; raise `ConfigError`."""
        if not (self.system or self.prefill):
            return Preface()
        return preface_of(Path(), self.system, self.prefill)


class ToolsInUse:
    """Chooses tools; `of` returns those of some names, or the usual ones."""

    def __init__(self, of: Callable[[Sequence[str]], Toolset]) -> None:
        self._of = of
        self._names: tuple[str, ...] = ()

    def choose(self, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for the usual ones)."""
        wanted = _listed(names)
        chosen = self._of(() if wanted == ("all",) else wanted)
        self._names = () if wanted == ("all",) else wanted
        return chosen

    def chosen(self, names: str = "") -> Toolset:
        """Return the tools for a turn that names these; "" are those chosen before."""
        wanted = _listed(names) or self._names
        return self._of(() if wanted == ("all",) else wanted)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


OTHER = "`%hermes model NAME` goes on with another model"
BY_BEGINNING = (
    (
        "the provider refused the API key",
        "`%hermes doctor` says where the key comes from; `%hermes key` asks for another, which "
        "counts from the next turn on",
    ),
    ("the account has no quota left", f"top it up, or {OTHER}"),
    ("the provider limits the rate of requests", f"ask again in a while, or {OTHER}"),
    ("the provider cannot answer just now", f"ask again in a while, or {OTHER}"),
    (
        "the conversation does not fit",
        "`%hermes compress` makes it shorter, `%hermes new` begins another",
    ),
    (
        "the provider refused the request",
        "`%hermes models` lists the models at hand, `%hermes model NAME` chooses one",
    ),
    (
        "the provider does not know this model",
        "`%hermes models` lists what is served, `%hermes model NAME` chooses one; an address"
        "{at} mostly ends in /v1",
    ),
    (
        "no connection to the provider",
        "is a server running{at}, and the network up? `%hermes model embedded` needs neither",
    ),
    ("the provider did not answer in time", f"ask again, or {OTHER}"),
    (
        "the answer could not be read",
        "does the server{at} speak OpenAI's protocol? Its address mostly ends in /v1",
    ),
    (
        "no API key",
        "`%hermes key` asks for one; it does not belong in the notebook",
    ),
    ("the server answered with a web page", "it mostly ends in /v1"),
    ("the server's answer is no chat completion", "it mostly ends in /v1"),
    ("the server sent", f"ask again, or {OTHER}"),
    ("the server's stream could not be read", f"ask again, or {OTHER}"),
    ("the provider broke the reply off", f"ask again, or {OTHER}"),
)


def remedy(error: str, *, address: str = "") -> str:
    """Return what to do about an error, "" where nothing is known to help.

    `address` is where the model is asked, "" for the provider's own.
    """
    for beginning, told in BY_BEGINNING:
        if error.startswith(beginning):
            return told.replace("{at}", f" at {redact(address)}" if address else "")
    return ""


def with_remedy(turn: Turn, *, address: str = "") -> Turn:
    """Return a turn whose error also says what to do next."""
    told = remedy(turn.error, address=address) if turn.reason == "failed" else ""
    return replace(turn, error=f"{turn.error.rstrip(' .')}; {told}") if told else turn


class CellTurn:
    """One turn, made by whoever wants its result: a stop loses nothing of what it had come to.

    `view` shows it, `events` are those so far.
    """

    def __init__(self, shell: Shell, options: TurnOptions) -> None:
        self.options = options
        self.events: list[Event] = []
        self._shell = shell
        # Where the answer goes into a variable, its cell shows no more than a status line.
        view = make_view(shell, quiet=options.quiet)
        self.view: View = StatusView(view.transcript) if options.quiet and options.into else view

    @property
    def transcript(self) -> Transcript:
        """What is shown."""
        return self.view.transcript

    @property
    def begun(self) -> bool:
        """Whether the conversation has the prompt."""
        return any(isinstance(event, TurnStarted) for event in self.events)

    @property
    def result(self) -> Turn | None:
        """What the turn came to, None as long as it has not ended."""
        ended = any(isinstance(event, TurnEnded) for event in self.events)
        return turn_of(self.events) if ended else None

    @asynccontextmanager
    async def shown(self, frontend: FrontEnd) -> AsyncIterator[None]:
        """Show the turn, also in a page that is reloaded meanwhile; the user's widgets go on."""
        alone = isinstance(self.view, StatusView)
        beside = nullcontext() if alone else rejoined(self._shell, frontend, self.transcript)
        async with beside, widgets_live(self._shell):
            try:
                yield
            finally:
                if self.transcript.started:
                    self.view.close()

    async def take(
        self,
        session: Session,
        message: Message,
        *,
        max_requests: int,
        budgets: Iterable[Budget],
        place: Place,
        preface: Preface | None = None,
    ) -> None:
        """Take the turn; a cancellation passes through when its last event has been seen."""
        self.transcript.model = session.agent.model.name
        self.transcript.loading = traits_of(session.agent.model).loading
        self.transcript.describe = session.agent.tools.describe
        self.transcript.live = partial(showing, self._shell)
        turn = session.turn(
            message,
            sinks=[self.view, self.events.append],
            max_requests=max_requests,
            budgets=budgets,
            effort=self.options.effort,
            place=place,
            preface=preface,
        )
        async with aclosing(turn) as running:
            async for _ in running:
                pass

    def tell_changes(
        self, session: Session, checkpoints: Checkpoints, knowledge: PromptSources
    ) -> None:
        """Have the view say what the checkpoints and the memory's history have of the turn."""
        if not self.transcript.calls:
            return
        turn = session.agent.turns
        self.transcript.session = session.id
        if why := checkpoints.unsaved(session.id, turn):
            told = "Not all that this turn changed can be undone, it could not be saved"
            self.view.note(f"{told}: {escape(why)}.")
        with suppress(HermesError, OSError):  # then the undo cannot be had either
            if checkpoints.has(session.id, turn):
                here = Path(os.path.realpath(os.curdir))
                self.transcript.changes = checkpoints.changes(session.id, turn, root=here)
            if any(view.call.name == "memory" for view in self.transcript.calls):
                self.transcript.learned = knowledge.learned(session.id, turn)


def make_view(shell: Shell, *, quiet: bool = False) -> View:
    """Return the view that fits where the cell runs."""
    transcript = Transcript()
    if not has_kernel(shell):
        magics = ours(shell)
        transcript.spelled = magics.spelled if magics else transcript.spelled
        return terminal_view(transcript, quiet=quiet)
    return FinalView(transcript) if quiet or not can_ask(shell) else CellView(transcript)


def terminal_view(transcript: Transcript, *, quiet: bool = False) -> View:
    """Return the view for standard output: drawn in a terminal that can, else plain text."""
    if not can_draw(sys.stdout):
        return TerminalView(transcript)
    from hermes_nb.notebook.display.terminal import DrawnView  # and with it rich's Markdown

    return DrawnView(transcript, quiet=quiet)


SHOWN = 6_000
"""Characters shown of one message; `--into NAME` gets all of them."""
SHOWN_MESSAGES = 40
"""Messages that are shown, the latest ones; the system prompt comes on top."""
UNSAID = "(new session)"
"""Stands for the id that a session gets when it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A request that could be sent: to which model, where, and in which bytes.

    `body` is the request's JSON, {} for a model that does not speak JSON. `session` is the id of
    the one that would go on, "" for a new one.
    """

    model: str
    endpoint: str
    session: str
    request: Request
    body: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ChatModel, request: Request, *, endpoint: str, session: str) -> DryRun:
        """Return the dry run of a request to this model."""
        body = body_of(model, request)
        return cls(
            model=model.name,
            endpoint=endpoint,
            session=session,
            request=request,
            body=json.loads(body) if body else {},
        )

    @property
    def tokens(self) -> dict[str, int]:
        """Estimated tokens of its parts."""
        system = [m for m in self.request.messages if m.role == "system"]
        rest = [m for m in self.request.messages if m.role != "system"]
        return {
            "system prompt": estimate_tokens(system),
            "tools": schema_tokens(self.request.tools),
            "conversation": estimate_tokens(rest[:-1]),
            "this message": estimate_tokens(rest[-1:]),
        }

    @property
    def wire(self) -> Mapping[str, Json]:
        """The body, or what stands for it where there is none."""
        if self.body:
            return self.body
        return {
            "messages": [message.to_dict() for message in self.request.messages],
            "tools": [tool.name for tool in self.request.tools],
        }

    def as_dict(self) -> dict[str, Json]:
        """Return all of it as JSON-ready values, without secrets."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            "session": self.session,
            "tokens": self.tokens,
            "request": _redacted(self.wire),
        }

    def told(self) -> str:
        """Return it as Markdown: sizes, then each message, tools and settings folded."""
        total = sum(self.tokens.values())
        where = f" at {code_span(self.endpoint)}" if self.endpoint else ""
        session = f"session {code_span(self.session)}" if self.session else "a new session"
        blocks = [
            f"**Nothing was sent.** To {code_span(self.model)}{where}, in {session}, "
            f"about {amount(total)} tokens:",
            grid(("part", "tokens"), [(name, amount(size)) for name, size in self.tokens.items()]),
        ]
        messages = [item for item in self.wire.get("messages", ()) if isinstance(item, Mapping)]
        system = [item for item in messages if item.get("role") == "system"]
        rest = [item for item in messages if item.get("role") != "system"]
        blocks += [_folded(item) for item in system]
        if (left_out := len(rest) - SHOWN_MESSAGES) > 0:
            blocks.append(f"*{left_out} earlier messages are not shown; `--into NAME` has them.*")
        blocks += [_folded(item) for item in rest[-SHOWN_MESSAGES:-1]]
        blocks += [_open(item) for item in rest[-1:]]
        others = {key: value for key, value in self.wire.items() if key != "messages"}
        if tools := others.pop("tools", None):
            names = ", ".join(tool.name for tool in self.request.tools)
            title = f"{len(self.request.tools)} tools: {one_line(names, 120)}"
            blocks.append(
                _details(title, json.dumps(_redacted(tools), indent=1, ensure_ascii=False))
            )
        if others:
            blocks.append(_details("settings", json.dumps(_redacted(others), indent=1)))
        return "\n\n".join(blocks)


def scene(
    found: Session | StoredSession | None,
    spec: SessionSpec,
    chosen: Toolset,
    *,
    store: SessionStore,
    source: str,
) -> tuple[str, Sequence[Message], Toolset]:
    """Return the system prompt, the conversation and the tools that a turn would have.

    `found` is what it would go on with, None for a new session.
    """
    if isinstance(found, Session):
        return found.agent.system, found.messages, with_context(chosen, found.agent.engine)
    place = Place(session=found.id if found else UNSAID)
    tools = with_context(chosen, spec.engine(store, place, tuple))
    if found is not None:
        return found.system_prompt, mend(store.messages(found.id), note=LOST_RESULT), tools
    prompt = compose(spec, Identity(source=source).platform, UNSAID)
    return prompt.text, (), tools


def endpoint_of(end: Endpoint, *, here: bool) -> str:
    """Return where a request would go; `here` says that the model runs on this machine."""
    if here:
        return end.base_url or "this machine"
    return redact(end.base_url or ("this machine" if end.model == "embedded" else "api.openai.com"))


def _folded(item: Mapping[str, Json]) -> str:
    text = _text_of(item)
    size = amount(text_tokens(text))
    return _details(f"{item.get('role')}, about {size} tokens: {one_line(text, 70)}", text)


def _open(item: Mapping[str, Json]) -> str:
    return f"**{escape(str(item.get('role')))}**\n\n{code_block(_shown(_text_of(item)), 'text')}"


def _details(title: str, text: str) -> str:
    head = escape(one_line(visible(redact(title)), 140))
    body = code_block(_shown(text), "text")
    return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"


def _shown(text: str) -> str:
    return visible(head_tail(redact(text), SHOWN), lines=True)


def _text_of(item: Mapping[str, Json]) -> str:
    """Return a wire message as text: what is said, pictures by their size, calls as JSON."""
    content = item.get("content", item.get("parts"))
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    texts = [_part(part) for part in parts if isinstance(part, Mapping)]
    if calls := item.get("tool_calls", item.get("calls")):
        texts.append(json.dumps(calls, ensure_ascii=False, indent=1, default=str))
    return "\n".join(text for text in texts if text)


def _part(part: Mapping[str, Json]) -> str:
    if "text" in part:
        return str(part["text"])
    data = part.get("image") or part.get("image_url", {}).get("url", "")
    return f"[picture, {len(data) * 3 // 4:,} bytes]"


def _redacted(value: Json) -> Json:
    """Return JSON without secrets; pictures stay as they are."""
    match value:
        case str():
            return value if value.startswith("data:image/") else redact(value)
        case Mapping():
            picture = "image" in value and "mime" in value
            return dict(value) if picture else {k: _redacted(v) for k, v in value.items()}
        case list() | tuple():
            return [_redacted(each) for each in value]
        case _:
            return value

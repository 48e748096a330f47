"""Taking a turn in a kernel: what it is asked with, what is shown of it, how its cell ends.

What a user can do about a turn that failed is the second half of the line that its cell ends with.
Which failure it was is told by how its text begins, in the words of `models.chat.errors`; scripts
and the command line have other ways out, so the words for a notebook are here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace

from hermes_nb.agent.config import Settings
from hermes_nb.agent.models import embedded_notice
from hermes_nb.agent.session import Session
from hermes_nb.agent.turn import Turn, turn_of
from hermes_nb.core.budget import Budget
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.events import Event, TurnEnded, TurnStarted
from hermes_nb.core.protocols import ChatModel, EventSink
from hermes_nb.core.text import one_line
from hermes_nb.models.profiles import seeing
from hermes_nb.notebook.attachments import Attachment, attachments
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import StatusView, View, make_view
from hermes_nb.notebook.host import Host
from hermes_nb.notebook.line import TurnOptions
from hermes_nb.notebook.models import sees
from hermes_nb.notebook.page_reload import rejoined, widgets_live
from hermes_nb.safety.redact import redact


class TurnFailed(HermesError):  # noqa: N818 - what happened to the turn
    """The turn failed; its cell fails with it, so that a run of the whole notebook stops here."""


class Stopped(HermesError):  # noqa: N818 - what the user did
    """The user stopped the turn; the cell ends as interrupted cells do, in one line."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


OTHER = "`%hermes model NAME` goes on with another model"
BY_BEGINNING = (
    (
        "the provider refused the API key",
        "`%hermes doctor` says where the key comes from; `%hermes key` asks for another, which "
        "counts from the next turn on",
    ),
    ("the account has no quota left", f"top it up, or {OTHER}"),
    ("the provider limits the rate of requests", f"run the cell again in a while, or {OTHER}"),
    ("the provider cannot answer just now", f"run the cell again in a while, or {OTHER}"),
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
    ("the provider did not answer in time", f"run the cell again, or {OTHER}"),
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
    ("the server sent", f"run the cell again, or {OTHER}"),
    ("the server's stream could not be read", f"run the cell again, or {OTHER}"),
    ("the provider broke the reply off", f"run the cell again, or {OTHER}"),
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


async def take(host: Host, prompt: str, options: TurnOptions) -> None:
    """Take a turn and show it; `host.turn` is the turn as soon as it has ended."""
    settings = host.settings()
    view = _view(host, options)
    host.turn = None
    events: list[Event] = []

    def follow(event: Event) -> None:
        events.append(event)
        if isinstance(event, TurnStarted):
            host.last = view.transcript
        elif isinstance(event, TurnEnded):
            address = host.settings().endpoint.base_url
            host.turn = with_remedy(turn_of(events), address=address)
            _bind(host, host.turn, options)

    # Where the answer goes into a variable, its cell shows no more than a status line.
    shown = view.transcript
    alone = isinstance(view, StatusView)
    beside = nullcontext() if alone else rejoined(host.shell, host.desk.frontend, shown)
    try:
        async with beside, widgets_live(host.shell):
            with _showing(host, view), _approving(host, options, settings):
                await _run(host, prompt, options, shown, [view, follow])
    except (asyncio.CancelledError, KeyboardInterrupt):
        if not any(isinstance(event, TurnStarted) for event in events):
            host.unsent.append(prompt)
            if host.session is not None and not (options.new or options.session):
                await _keep_unsent(host, host.session)
        raise
    _take_other_settings(host)


async def _run(
    host: Host,
    prompt: str,
    options: TurnOptions,
    transcript: Transcript,
    sinks: Sequence[EventSink],
) -> None:
    """Prepare the session and have it take the turn."""
    if options.model:
        host.choose_model(options.model)
    await host.models.make_ready(host.shell, host.note)
    pictures: Sequence[Attachment] = ()
    if options.images:  # before there is a session: nothing is sent, and nothing stored
        require_eyes(host, host.models.main)
        pictures = attachments(options.images, host.shell)
    session = prepare(host, prompt, options)
    await _keep_unsent(host, session)
    host.tell_what_was_learned(session)
    transcript.model = session.agent.model.name
    session.use(host.tools_in_use.chosen(options.tools))
    transcript.describe = session.agent.tools.describe
    told_to = session.id if options.context else None
    message = await host.briefing.message(prompt, told_to, pictures=pictures)
    turn = session.turn(
        message,
        sinks=sinks,
        max_requests=options.max_requests or host.settings().max_requests,
        budgets=budgets(host, options),
        effort=options.effort,
    )
    async with aclosing(turn) as running:
        async for _ in running:
            pass


async def _keep_unsent(host: Host, session: Session) -> None:
    """Add the prompts that were stopped before their turns began, each as a turn that was."""
    while host.unsent:
        async with aclosing(session.agent.run(host.unsent.pop(0))) as stopped:
            await anext(stopped)


def prepare(host: Host, prompt: str, options: TurnOptions) -> Session:
    """Return the session that takes the turn, built, resumed or as it stands."""
    if options.new:
        host.new()
    equipment = host.equipment(host.settings())
    conversations = host.conversations
    if options.session:
        session = conversations.join(options.session, equipment)
    else:
        found = None if options.new else host.session
        if found is None and not options.new and not host.deck.on:
            found = conversations.pick_up(equipment)
        session = found or conversations.start(one_line(prompt, 60), equipment)
    session.adopt(equipment)
    return session


def budgets(host: Host, options: TurnOptions) -> list[Budget]:
    """Return the budgets of one turn; money is no matter for a model on this machine."""
    limits = options.limits
    if limits.cost is not None and host.models.runs_here:
        host.note("The model runs on this machine and costs nothing: `--max-cost` is idle.")
        limits = type(limits)(tokens=limits.tokens)
    return [Budget(limits, scope="this turn")] if limits else []


def require_eyes(host: Host, model: ChatModel) -> None:
    """Raise `ConfigError` for a model that is not known to take pictures."""
    given = model if host.models.given else None
    if sees(host.settings(), model.name, given=given):
        return
    name = "the built-in model" if embedded_notice(model) is not None else model.name
    message = (
        f"{name} is not known to take pictures, so nothing was sent. Models that do: "
        f"{', '.join(seeing())} and others (`--model NAME`); if this one does, say so with "
        "`%hermes config vision on`"
    )
    raise ConfigError(message)


def _take_other_settings(host: Host) -> None:
    """Let a key or an address that is set after a failure count from the next turn on.

    The built-in model has neither, and would be loaded anew.
    """
    failed = host.turn is not None and host.turn.reason == "failed"
    if failed and embedded_notice(host.models.main) is None:
        host.models.renew()


def _bind(host: Host, turn: Turn, options: TurnOptions) -> None:
    """Bind the answer to the variable that the user named, if there is an answer."""
    if options.into and turn.reason == "answered":
        host.shell.user_ns[options.into] = turn.text
    elif options.into and turn.reason == "budget":
        host.note(f"`{options.into}` was not set: the turn ended without an answer.")


def _view(host: Host, options: TurnOptions) -> View:
    view = make_view(host.shell, quiet=options.quiet)
    return StatusView(view.transcript) if options.quiet and options.into else view


@contextmanager
def _showing(host: Host, view: View) -> Iterator[None]:
    host.view = view
    try:
        yield
    finally:
        host.view = None
        if view.transcript.started:
            view.close()


@contextmanager
def _approving(host: Host, options: TurnOptions, settings: Settings) -> Iterator[None]:
    mode = host.guard.mode
    host.guard.mode = host.permission.granted(options.approve or settings.approve)
    host.guard.required = settings.sandbox.required
    host.guard.sandboxed = settings.sandbox.use != "off"
    try:
        yield
    finally:
        host.guard.mode = mode

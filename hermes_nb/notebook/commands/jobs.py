"""`%hermes map`, one prompt for many inputs, and `%hermes jobs`, which lists and stops jobs."""

from __future__ import annotations

import asyncio
import keyword
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.fanout.executors import HERE
from hermes_nb.agent.fanout.inputs import inputs_of
from hermes_nb.agent.fanout.maps import Fanout, Item, MapPlan, rows_of, run_map, table_markdown
from hermes_nb.agent.models import build_model
from hermes_nb.agent.session.session import CHILD
from hermes_nb.agent.session.usage import standing_budgets
from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import ConfigError, SessionBusy, StoreError
from hermes_nb.core.escapes import visible
from hermes_nb.core.loop import BUSY
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import both_ends, one_line, used
from hermes_nb.core.threads import in_thread
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.display.tables import grid, plain_text
from hermes_nb.notebook.display.views import INTERVAL, STILL_RUNNING, TICK, can_draw, show
from hermes_nb.notebook.document.document import short_ids
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.document.outline import rendered, with_outputs
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import Foreign, Shell, can_ask, has_kernel, working_directory
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from rich.live import Live


WIDTH = 24
"""Width of the progress bar in characters."""
NAMED = 4
"""Maximum number of inputs in progress to list by name."""
ENDS = ("done", "failed", "unknown", "stopped", "budget")
"""An input's final states."""
WORDS = {"budget": "not started, out of budget"}
"""Descriptions of states whose names are unclear."""


class MapView:
    """Shows the progress of a map, which runs one prompt for each of many inputs."""

    def __init__(self, shell: Shell, fanout: Fanout) -> None:
        self._fanout = fanout
        self._cell = has_kernel(shell) and can_ask(shell)
        self._screen = None if has_kernel(shell) or not can_draw(sys.stdout) else _screen()
        self._began = time.monotonic()
        self._shown = 0.0
        self._handle: Foreign = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    def moved(self) -> None:
        """Schedule an update; called after every change, on the map's event loop."""
        if self._closed or self._due or not (self._cell or self._screen):
            return
        self._due = True
        self._wait(max(self._shown + INTERVAL - time.monotonic(), 0.0))

    def close(self) -> None:
        """Show the final table."""
        if not self._closed:
            self._closed = True
            self._wait(None)
            if self._screen is not None:
                self._screen.stop()
            self._display(finished(self._fanout, time.monotonic() - self._began))

    def _tick(self) -> None:
        self._due = False
        self._shown = time.monotonic()
        shown = running(self._fanout, self._shown - self._began)
        if self._screen is None:
            self._display(shown, over=False)
        else:
            _draw(self._screen, shown)
        self._wait(TICK)  # updates the elapsed time

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop() if seconds is not None else None
        self._timer = loop.call_later(seconds or 0.0, self._tick) if loop is not None else None

    def _display(self, markdown: str, *, over: bool = True) -> None:
        from IPython.display import display

        plain = plain_text(markdown) if over else STILL_RUNNING
        data = {"text/markdown": markdown, "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True) if self._cell else None
            if not self._cell:
                show(data)
        else:
            self._handle.update(data, raw=True)


def _screen() -> Live:
    """Return a live view at the end of the terminal, which disappears when it stops."""
    from rich.console import Console
    from rich.live import Live

    return Live(
        console=Console(highlight=False, force_terminal=True), auto_refresh=False, transient=True
    )


def _draw(screen: Live, markdown: str) -> None:
    from rich.text import Text

    lines = filter(None, plain_text(markdown).split("\n"))
    screen.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
    screen.start()
    screen.refresh()


def running(fanout: Fanout, seconds: float) -> str:
    """Return a progress bar, the inputs in progress, and usage so far, as Markdown."""
    items = fanout.items
    over = sum(item.status in ENDS for item in items)
    filled = WIDTH * over // len(items)
    names = [item.name for item in items if item.status == "running"]
    shown = [escape(visible(both_ends(name, 40))) for name in names[:NAMED]]
    shown += [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    bar = "▰" * filled + "▱" * (WIDTH - filled)
    work = f"> {', '.join(shown)}\n\n" if shown else ""
    parts = [*([_counted(items)] if over else ()), *used(fanout.usage), f"{seconds:.0f} s"]
    return f"{bar} {over} of {len(items)}\n\n{work}<sub>◌ {' · '.join(parts)}</sub>"


def finished(fanout: Fanout, seconds: float) -> str:
    """Return the results, usage, and advice about missing answers, as Markdown."""
    items = fanout.items
    mark = "✓" if all(item.status == "done" for item in items) else "◔"
    kept = sum(item.kept and item.status == "done" for item in items)
    parts = [f"{mark} {_counted(items)}"]
    parts += [f"{kept} from an earlier run"] if kept else []
    parts += [*used(fanout.usage), f"{seconds:.1f} s"]
    blocks = [table_markdown(rows_of(items)), _advice(items), f"<sub>{' · '.join(parts)}</sub>"]
    return "\n\n".join(filter(None, blocks))


def _counted(items: list[Item]) -> str:
    counts = {state: sum(item.status == state for item in items) for state in ENDS}
    parts = [f"{count} {WORDS.get(state, state)}" for state, count in counts.items() if count]
    return ", ".join(parts) or f"0 of {len(items)}"


def _advice(items: list[Item]) -> str:
    """Return advice about unanswered inputs, or "" if all have answers."""
    states = {item.status for item in items}
    parts = []
    if states & {"stopped", "budget"}:
        parts.append("The same command continues with the remaining inputs.")
    if states & {"failed", "unknown"}:
        parts.append("`--retry` repeats the failed and unknown ones.")
    return " ".join(parts)


Spent = Callable[[Usage], None]
"""Records a request's usage."""
NONE = "No child agents or maps are running."


def jobs(agent: KernelAgent, given: Namespace) -> str:
    """List the running jobs, or stop one or all of them."""
    if not given.action:
        rows = [
            (
                *(code_span(job.id), job.kind, _shown(job.title, 80)),
                "stopping" if job.stopping else _shown(job.doing, 80),
                f"{job.seconds:.0f} s",
            )
            for job in agent.jobs
        ]
        return grid(("id", "what", "task", "doing", "for"), rows) if rows else NONE
    if not given.job:
        running = list(agent.jobs)
        for each in running:
            each.stop()
        return f"Stopping {len(running)}." if running else NONE
    job = agent.jobs.get(given.job)
    if job is None:
        raise ConfigError(f"no job {given.job!r} is running; `%hermes jobs` lists them")
    job.stop()
    return f"Stopping {code_span(job.id)}; finished work is saved."


async def map_(agent: KernelAgent, options: Namespace) -> str:
    """Run a map and show its results."""
    prompt, *files = options.words or [""]
    if options.into and (not options.into.isidentifier() or keyword.iskeyword(options.into)):
        raise ConfigError(f"--into {options.into!r} is not a variable name; nothing was sent")
    inputs = inputs_of(files, root=working_directory(), readers={".ipynb": notebook_text})
    if agent.running:
        raise SessionBusy(BUSY)
    ending = AsyncExitStack()

    def begun(fanout: Fanout) -> Callable[[], None]:
        view = MapView(agent.shell, fanout)
        ending.callback(view.close)
        return view.moved

    async with ending:
        settings = agent.settings(model=options.model or None)
        model = await _model(agent, settings, ending, options)
        budgets, spent = await _account(agent, options, model)
        end = settings.endpoint
        tools = tuple(name.strip() for name in options.tools.split(",") if name.strip())
        mapped = await run_map(
            MapPlan(
                prompt=prompt,
                model=model.name,
                base_url=end.base_url,
                tools=tools,
                root=str(working_directory()),
                parallel=1 if traits_of(model).local else options.parallel,
                retry=options.retry,
                afresh=agent.deck.on,
            ),
            inputs,
            executor=options.executor or HERE,
            model=model,
            store=agent.store,
            budgets=budgets,
            jobs=agent.jobs,
            spent=spent,
            tools=agent.runtime.for_tasks(model, tools),
            observers=agent.runtime.observers,
            place=replace(agent.place, notebook=agent.notebook),
            begun=begun,
        )
    if options.into:
        agent.shell.user_ns[options.into] = mapped.table
    return ""


async def notebook_text(path: Path) -> str:
    """Return the cells and outputs of a closed notebook, formatted as by `read_cells`."""
    document = FileDocument(path)
    cells = await document.cells()
    names = short_ids(cell.id for cell in cells)
    return rendered(await with_outputs(document, cells), names, images=False).text


async def _model(
    agent: KernelAgent, settings: Settings, ending: AsyncExitStack, options: Namespace
) -> ChatModel:
    """Return the conversation's model, or the one in `options`, which `ending` will close."""
    if options.executor not in ("", HERE) and (agent.models.given or agent.deck.on):
        raise ConfigError(
            "a model object or a cassette cannot be sent to other processes; omit --executor"
        )
    if not options.model:
        await agent.models.make_ready(agent.note)
        return agent.models.main
    model = await in_thread(build_model, settings, deck=agent.deck)
    ending.push_async_callback(model.aclose)
    return model


async def _account(
    agent: KernelAgent, options: Namespace, model: ChatModel
) -> tuple[list[Budget], Spent]:
    """Return a map's budgets, and a function that records its usage.

    The map gets its own row in the store, as a child of the current conversation.
    """
    store, notebook = agent.store, agent.notebook
    left_off = agent.sessions.expected("", new=False, afresh=agent.deck.on)
    parent = left_off.id if left_off is not None else ""
    title = one_line(f"map: {redact(options.words[0])}", 60)
    row = await in_thread(store.start, source=CHILD, title=title, model=model.name, parent=parent)
    settings = agent.settings()
    limits = agent.models.budget(settings)
    budgets = await in_thread(
        standing_budgets, store, row, notebook=notebook, limits=limits, known=Usage()
    )
    own = Limits(cost=options.max_cost, tokens=options.max_tokens)
    if own:
        budgets.insert(0, Budget(own, scope="this map"))

    def spent(usage: Usage) -> None:
        with suppress(StoreError):  # losing a count must not fail the map
            store.count(row, usage)

    return budgets, spent


def _shown(text: str, limit: int) -> str:
    return escape(visible(one_line(redact(text), limit)))

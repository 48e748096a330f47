"""The panel: tabs that follow the kernel's activity, and a line for the result of each click.

Five tabs are built in; other packages add theirs under the entry point group `hermes_nb.panels`.

Only the visible tab is updated, at most every `INTERVAL` seconds, and only after events that change
it. Its data is read in a thread. Closing the panel in the page does not stop anything. A reloaded
page shows it again if it was open.
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Mapping
from pathlib import PurePosixPath

import ipywidgets as widgets

from hermes_nb.agent.settings.config import APPROVE_MODES, load_settings
from hermes_nb.agent.settings.sources import within
from hermes_nb.core.errors import HermesError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import BackgroundEvent, Event, TurnEnded
from hermes_nb.core.plugins import plugins
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.page_discovery import Info
from hermes_nb.notebook.panels import GROUP
from hermes_nb.notebook.panels.chat import ChatTab
from hermes_nb.notebook.panels.context import ContextTab
from hermes_nb.notebook.panels.memory import MemoryTab
from hermes_nb.notebook.panels.sessions import SessionTab
from hermes_nb.notebook.panels.skills import SkillsTab
from hermes_nb.notebook.panels.style import STYLE
from hermes_nb.notebook.panels.widgets import Actions, Kit, Tab, TabContext, error_line, write
from hermes_nb.notebook.shell import Foreign
from hermes_nb.notebook.widget_messages import teller
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

INTERVAL = 0.5
"""Minimum seconds between updates during a turn."""
TITLE = "Hermes"
DRAWN = 0.15
"""Seconds allowed for the page to render the visible part before the rest is sent."""
SHOWING = 10.0
"""Timeout for the page to show the panel: it may have to load the widget library first."""

_NAME = re.compile(r"\w[\w./:@+-]*")


class Panel:
    """A kernel's panel. It is created on the kernel's loop, and its actions run there.

    `widget` can be displayed like any other; `show` puts it into the page's sidebar.
    """

    def __init__(self, agent: KernelAgent) -> None:
        self._agent = agent
        self._loop = asyncio.get_running_loop()
        self._actions = Actions(self._loop, say=self._show_message, after=self._refreshed)
        self._kit = kit = Kit(self._actions, teller(getattr(agent.shell, "kernel", None)))
        place = TabContext(agent=agent, kit=kit, refresh=self.refresh)
        self.tabs = _tabs(place)
        self._said = kit.markup()
        self._tabs = kit.make(
            widgets.Tab,
            "hermes-tabs",
            children=tuple(tab.widget for tab in self.tabs),
            titles=tuple(tab.title for tab in self.tabs),
            selected_index=0,
        )
        self._tabs.observe(self._turned, names="selected_index")
        style = kit.markup(STYLE, "hermes-style")
        self.widget = kit.box(style, self._said, self._tabs, css="hermes-panel")
        self.widget._view_count = 0  # noqa: SLF001 - makes pages count views; no public name
        self.widget.observe(self._viewed, names="_view_count")
        self._pages: set[str] = set()
        self._beside = False
        self._folded: dict[str, tuple[widgets.Widget, ...]] = {}
        self._hidden = False
        self._fold()
        self._timer: asyncio.TimerHandle | None = None
        self._updated = 0.0
        self._reading = asyncio.Lock()
        self._again = False
        agent.hub.listeners.append(self)
        agent.shell.events.register("post_run_cell", self._ran)
        agent.access.frontend.listeners.append(self._hello)
        if settled := agent.guard.policy:
            self._show_message(settled.summary)

    @property
    def alive(self) -> bool:
        """Whether its widgets are open: `Widget.close_all()` may have closed them."""
        return self.widget.comm is not None

    @property
    def tab(self) -> Tab:
        """The visible tab."""
        return self.tabs[self._tabs.selected_index or 0]

    def select(self, title: str) -> None:
        """Show the tab with this title (case-insensitive); "" keeps the current one."""
        titles = [tab.title.lower() for tab in self.tabs]
        if title:
            self._tabs.selected_index = titles.index(title.lower())

    async def show(self, *, again: bool = False) -> bool:
        """Show the panel in the page's sidebar; return False if no page can do that.

        Set `again` for a reloaded page, which leaves a hidden panel hidden.
        """
        frontend = self._agent.access.frontend
        page = await frontend.present(patient=not again)
        if page is None or not page.widgets:
            return False
        self._pages.add(page.name)
        name = one_line(visible(PurePosixPath(page.path).stem), 30)
        asked = {"model_id": self.widget.model_id, "title": f"{TITLE} · {name}", "again": again}
        await frontend.call("panel", timeout=SHOWING, **asked)
        self._actions.start(self._tell_choices)
        self._seen()
        return True

    def heard(self, event: Event | BackgroundEvent) -> None:
        """Schedule an update if the event requires it; returns immediately, on any thread."""
        if isinstance(event, TurnEnded) or self.tab.concerned(event):
            self._actions.call(self._soon)

    def refresh(self) -> None:
        """Read and show the visible tab again soon."""
        self._actions.start(self._refreshed)

    async def settled(self) -> None:
        """Wait until all clicks have been handled and their results shown."""
        await self._actions.settled()

    def close(self) -> None:
        """Close the panel and its widgets."""
        if self._timer is not None:
            self._timer.cancel()
        hub, frontend = self._agent.hub, self._agent.access.frontend
        if self in hub.listeners:
            hub.listeners.remove(self)
            self._agent.shell.events.unregister("post_run_cell", self._ran)
        if self._hello in frontend.listeners:
            frontend.listeners.remove(self._hello)
        frontend.tell("drop", id="panel")
        self._actions.close()
        self._kit.close()

    def _ran(self, _result: Foreign) -> None:
        """Update what a cell may have changed: the mode, the model, and the prompts to try."""
        if self._beside:
            self._actions.start(self._tell_choices)
            if isinstance(self.tab, ChatTab):
                self.refresh()

    async def _tell_choices(self) -> None:
        found = await in_thread(choices, self._agent)
        self._agent.access.frontend.tell("choices", **found)

    def _soon(self) -> None:
        if self._timer is None:
            wait = max(self._updated + INTERVAL - time.monotonic(), 0.0)
            self._timer = self._loop.call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = None
        self.refresh()

    async def _refreshed(self) -> None:
        """Read and show the visible tab; a call during a refresh makes it read again afterwards."""
        self._again = True
        async with self._reading:
            if not self._again:
                return
            self._again = False
            tab = self.tab
            self._updated = time.monotonic()
            try:
                tab.show(await in_thread(tab.read))
            except (HermesError, OSError) as error:
                self._show_message(error_line(error), "alert")
        self._actions.start(self._unfold)

    def _fold(self) -> None:
        """Keep only the visible tab, and the first lines of its lists, in the page.

        A page creates a view for each widget, even in hidden tabs.
        """
        for tab in self.tabs:
            foldable = hasattr(tab.widget, "children") and tab.title not in self._folded
            if tab is not self.tab and foldable:
                self._folded[tab.title] = tab.widget.children
                write(tab.widget, (), "children")
        for listing in self._kit.listings:
            listing.fold()

    def _front(self) -> None:
        self._show_message("")
        if (children := self._folded.pop(self.tab.title, None)) is not None:
            write(self.tab.widget, children, "children")

    async def _unfold(self) -> None:
        """Add the remaining lines after the first ones have been rendered."""
        await asyncio.sleep(DRAWN)
        if not self._hidden:
            for listing in self._kit.listings:
                listing.fold(folded=False)

    def _seen(self) -> None:
        if self._hidden:
            self._hidden = False
            self._actions.start(self._unfold)

    def _show_message(self, text: str, role: str = "status") -> None:
        """Show a message below the tabs; empty text removes the previous one."""
        classes = ("hermes-said", "hermes-bad") if role == "alert" else ("hermes-said",)
        write(self._said, classes if text else (), "_dom_classes")
        safe = html.escape(visible(one_line(text, 300)))
        write(self._said, f'<div role="{role}">{safe}</div>' if text else "")

    def _turned(self, _: object) -> None:
        """Show the newly selected tab, and clear the message of the previous one."""
        self._actions.call(self._front)
        self.refresh()

    def _viewed(self, change: Mapping[str, int]) -> None:
        """Track the number of panel views in pages; fold the panel when the last one is gone."""
        self._beside = change["new"] > 0
        if self._beside:
            self._seen()
        else:
            self._hidden = True
            self._actions.call(self._fold)

    def _hello(self, page: Info) -> None:
        """On a reloaded page's hello, show the panel again if it was open."""
        if not self._beside or page.name in self._pages or not page.widgets:
            return
        self._pages.add(page.name)

        async def again() -> None:
            self.widget._view_count = 0  # noqa: SLF001 - a closed page does not decrement it
            try:
                await self.show(again=True)
            except ToolError:  # the page closed again; its next hello retries
                self._pages.discard(page.name)
                self._beside = True

        self._actions.start(again)


def choices(agent: KernelAgent) -> dict[str, list[str]]:
    """Return the current value, then the available ones, for each option of the prompt composer.

    The available models are the configured ones with the same address.
    """
    now, configured, settled = agent.settings(), load_settings(), agent.guard.policy
    model = agent.models.name or now.endpoint.model
    ends = (configured.endpoint, *configured.fallbacks, *configured.auxiliary.values())
    named = {end.model for end in ends if end.base_url == now.endpoint.base_url}
    named = {name for name in named - {model} if not settled.why("models", name)}
    fit = sorted(name for name in named if _NAME.fullmatch(name))
    mode = within(now.approve)
    modes = [each for each in APPROVE_MODES if not settled.why("modes", each)]
    return {
        "approve": [f"approve: {mode}", *modes],
        "model": [f"model: {model or 'as set'}", *fit],
    }


def _tabs(place: TabContext) -> tuple[Tab, ...]:
    """Return the tabs, with tabs from other packages last; tabs that fail to load are omitted."""
    kinds = (ChatTab, MemoryTab, SkillsTab, ContextTab, SessionTab)
    tabs: list[Tab] = [kind(place) for kind in kinds]
    for point in plugins(GROUP):
        why = "it is not a Tab, or its title is missing or taken"
        try:
            made = point.load()(place)
        except Exception as error:  # noqa: BLE001 - third-party code may raise anything
            made, why = None, one_line(redact(f"{type(error).__name__}: {error}"), 200)
        titles = [tab.title.lower() for tab in tabs]
        if isinstance(made, Tab) and made.title and made.title.lower() not in titles:
            tabs.append(made)
        else:
            place.agent.note(f"The tab {code_span(point.name)} is off: {escape(why)}.")
    return tuple(tabs)

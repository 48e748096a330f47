"""The building blocks of the panel's tabs: buttons, lists, fields and click actions.

A list has widgets for only one page of items, and reuses them for other pages: a thousand skills
need no more widgets than twenty. Unchanged values are not sent again.

A front end may deliver clicks on any thread (kernels with subshells do). So every action first
moves to the loop on which the panel was opened, where turns run too. Files and databases are read
in a thread. Only the loop touches widgets.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

import ipywidgets as widgets
import traitlets
from ipywidgets.widgets.widget_description import DescriptionStyle
from ipywidgets.widgets.widget_string import HTMLStyle, TextStyle

from hermes_nb.core.errors import HermesError
from hermes_nb.core.events import BackgroundEvent, Event
from hermes_nb.core.text import capitalised, one_line
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.panels.style import STYLE
from hermes_nb.notebook.shell import Foreign
from hermes_nb.notebook.widget_messages import Tell, answered
from hermes_nb.safety.markup import clean_html
from hermes_nb.safety.redact import redact

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Work = Callable[[], "str | Awaitable[str | None] | None"]
"""The action of a click; returns a message to show, or raises an error whose message is shown."""
Say = Callable[[str, Literal["status", "alert"]], None]
"""Shows one line of plain text with an ARIA role."""
PAGE = 20
"""Items per list page."""
FIRST = 8
"""Items in a folded list, about as many as are initially visible."""
TYPING = 0.3
"""Seconds without a key press before a search starts."""
QUERY = 500
"""Maximum characters of input to use."""
STYLES = {
    widgets.Text: TextStyle,
    widgets.Textarea: TextStyle,
    widgets.Dropdown: DescriptionStyle,
    widgets.Button: widgets.ButtonStyle,
}
"""Style models by kind of widget."""


class ActionRefused(HermesError):
    """An action was refused; the message explains why."""


@dataclass(frozen=True, slots=True)
class Act:
    """An action and its button."""

    label: str
    """Text of the button."""
    tip: str
    """Tooltip."""
    do: Work = field(compare=False)
    """The action."""
    _: KW_ONLY  # the fields below are keyword-only
    off: str = ""
    """The reason the action is not available now, or "" if it is."""
    here: bool = False
    """Whether it only changes the view; such an action does not wait for earlier ones to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListItem:
    """A list item; its texts are HTML."""

    key: str
    """Identifies the item in its list."""
    text: str
    """Its main text."""
    foot: str = ""
    """Small text below, before the buttons; "" for none."""
    head: str = ""
    """Heading of a group, shown above the item; "" for none."""
    name: Act | None = None
    """A button before the text, for items that can be opened; None for none."""
    acts: tuple[Act, ...] = ()
    """Buttons below the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabContext:
    """A tab's context: the agent, a widget factory, and a way to request a refresh."""

    agent: KernelAgent
    """The kernel's agent."""
    kit: Kit
    """Creates widgets and runs their actions."""
    refresh: Callable[[], None]
    """Reads and shows the tab again soon; may be called from any thread."""

    @property
    def actions(self) -> Actions:
        """Runs clicks, and moves calls from other threads to the loop."""
        return self.kit.actions

    @property
    def busy(self) -> str:
        """The reason the conversation cannot be changed now, or "" if it can."""
        runs = self.agent.hub.running
        return "a turn is running; wait for it or stop it" if runs else ""


class Tab:
    """A panel tab.

    `read` may block and runs in a thread; all other methods run on the kernel's loop.
    """

    title = ""
    """Its title, unique in the panel."""
    events: tuple[type, ...] = ()
    """Event classes (in `hermes_nb.core.events`) that make the tab reread its data."""

    def __init__(self, place: TabContext) -> None:
        self.place = place
        self.widget: widgets.Widget = place.kit.box()

    def read(self) -> object:
        """Return the data to show."""

    def show(self, found: Foreign) -> None:
        """Show what `read` returned."""

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Return whether an event changes the tab."""
        return isinstance(event, self.events)


class Actions:
    """Runs click actions on `loop`, one at a time.

    After each action, `say` shows its result and `after` is awaited.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, say: Say, after: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = loop
        self._say = say
        self._after = after
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Work) -> None:
        """Run an action and show its result; returns immediately, on any thread."""
        self.start(partial(self._perform, work))

    def start(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine on the loop; returns immediately, on any thread."""

        async def run() -> None:
            try:
                await begin()
            except Exception:  # a failed refresh: the next one may succeed
                logger.exception("the panel could not be updated")

        def on_loop() -> None:
            task = asyncio.ensure_future(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.call(on_loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop soon, from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the kernel ends
            self._loop.call_soon_threadsafe(function)

    def typed(self, function: Callable[[], None]) -> Callable[[object], None]:
        """Return an observer that calls a function after `TYPING` seconds without input."""
        timer: asyncio.TimerHandle | None = None

        def wait() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
            timer = self._loop.call_later(TYPING, function)

        return lambda _: self.call(wait)

    async def settled(self) -> None:
        """Wait until all started tasks have ended."""
        await asyncio.sleep(0)
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def _perform(self, work: Work) -> None:
        async with self._one:
            try:
                done = work()
                said = (await done if inspect.isawaitable(done) else done) or ""
            except (HermesError, OSError, ValueError) as error:
                self._say(error_line(error), "alert")
            except Exception as error:
                logger.exception("a click in the panel failed")
                message = (
                    f"this failed because of a bug in hermes_nb: {type(error).__name__}: {error}"
                )
                self._say(one_line(redact(message), 300), "alert")
            else:
                self._say(said, "status")
        await self._after()


def error_line(error: Exception) -> str:
    """Return an error's message as one line."""
    return one_line(redact(capitalised(str(error) or type(error).__name__)), 300)


def outcome(message: str, *, done: bool) -> str:
    """Return a message as a sentence, or raise it as `ActionRefused` if not `done`."""
    if not done:
        raise ActionRefused(message)
    return f"{capitalised(message)}."


class Markup(widgets.HTML):
    """HTML generated by this package; sanitised whenever it is set."""

    @traitlets.validate("value")
    def _cleaned(self, proposal: Mapping[str, object]) -> str:
        value = str(proposal["value"])
        return value if value == STYLE else clean_html(value)


class Kit:
    """Creates widgets, and finally closes all of them.

    Widgets share layout and style models, because each model costs a message to the page. `tell` is
    called after every message about these widgets to report that the kernel is idle.
    """

    def __init__(self, actions: Actions, tell: Tell) -> None:
        self.actions = actions
        self.listings: list[Listing[Foreign]] = []
        self._tell = tell
        self._made: list[widgets.Widget] = []
        self._layout = self._register(widgets.Layout())
        self._styles: dict[type, widgets.Style] = {}

    def make(
        self, kind: type[widgets.Widget], *classes: str, **traits: object
    ) -> widgets.DOMWidget:
        """Return an `ipywidgets` widget of this kind, with CSS classes."""
        if (style := STYLES.get(kind)) is not None:
            if style not in self._styles:
                self._styles[style] = self._register(style())
            traits["style"] = self._styles[style]
        names = tuple(filter(None, classes))
        return self._register(kind(layout=self._layout, _dom_classes=names, **traits))

    def markup(self, value: str = "", *classes: str) -> widgets.HTML:
        """Return a widget that shows HTML; the caller escapes untrusted text in it."""
        return self.make(Markup, *classes, value=value)

    def box(self, *children: widgets.Widget, line: bool = False, css: str = "") -> widgets.Box:
        """Return a box of widgets in a column or, with `line`, in a row."""
        kind = widgets.HBox if line else widgets.VBox
        return self.make(kind, css or ("hermes-line" if line else ""), children=children)

    def field(
        self, hint: str, kind: type[widgets.Widget] = widgets.Text, **options: object
    ) -> widgets.Text:
        """Return an input field; `hint` is its placeholder and its name for screen readers."""
        return self.make(kind, placeholder=hint, tooltip=hint, **options)

    def push(self, act: Act | None = None, *classes: str) -> Push:
        """Return a button whose action can be set later."""
        return Push(self, act, *classes)

    def close(self) -> None:
        """Close all widgets."""
        while self._made:
            self._made.pop().close()

    def _register(self, widget: widgets.Widget) -> widgets.Widget:
        self._made.append(widget)
        if widget.comm is not None:
            answered(widget, self._tell)
        return widget


STYLES[Markup] = HTMLStyle


class Push:
    """A button whose action can be replaced; it does nothing while disabled."""

    def __init__(self, kit: Kit, act: Act | None, *classes: str) -> None:
        self.widget = kit.make(widgets.Button, *classes)
        self._actions = kit.actions
        self._act: Act | None = None
        self.widget.on_click(self._clicked)
        if act is not None:
            self.show(act)

    def show(self, act: Act) -> None:
        """Set the button's action."""
        if act != self._act:
            with self.widget.hold_sync():
                self.widget.description = act.label
                self.widget.tooltip = f"{act.tip}: {act.off}" if act.off else act.tip
                self.widget.disabled = bool(act.off)
        self._act = act

    def _clicked(self, _: object) -> None:
        act = self._act
        if act is not None and not act.off:
            (self._actions.call if act.here else self._actions.do)(act.do)


class Buttons:
    """One item's buttons, in two sets that alternate from item to item.

    So a late click on a button that the page still shows runs the old item's action, not that of
    the item that replaced it.
    """

    def __init__(self, kit: Kit, *classes: str) -> None:
        self._kit, self._classes = kit, classes
        self._shown: list[Push] = []
        self._others: list[Push] = []
        self._key = ""

    def show(self, key: str, acts: Sequence[Act]) -> tuple[widgets.Widget, ...]:
        """Set the buttons for the item with this key, and return their widgets."""
        if key != self._key:
            self._key = key
            self._shown, self._others = self._others, self._shown
        for made, act in zip(self._shown, acts, strict=False):
            made.show(act)
        for act in acts[len(self._shown) :]:
            self._shown.append(Push(self._kit, act, *self._classes))
        return tuple(made.widget for made in self._shown[: len(acts)])


class ItemWidgets:
    """A list item's widgets."""

    def __init__(self, kit: Kit) -> None:
        self._head = kit.markup()
        self._text = kit.markup()
        self._foot = kit.markup("", "hermes-small", "hermes-dim")
        self._name = Buttons(kit, "hermes-link", "hermes-name")
        self._acts = Buttons(kit, "hermes-link")
        self._top = kit.box(line=True, css="hermes-foot")
        self._below = kit.box(line=True, css="hermes-foot")
        self._body = kit.box(css="hermes-row")
        self.widget = kit.box(self._body)
        self._line: ListItem | None = None

    def show(self, line: ListItem, below: widgets.Widget | None = None) -> None:
        """Show an item, with the widget `below` it."""
        name = self._name.show(line.key, [line.name] if line.name else [])
        acts = self._acts.show(line.key, line.acts)
        if line != self._line:
            self._line = line
            write(self._head, line.head)
            write(self._text, line.text)
            write(self._foot, line.foot)
            write(self._below, (*([self._foot] if line.foot else []), *acts), "children")
            write(self._top, (*name, self._text) if name else (), "children")
            first = self._top if name else self._text
            rest = [self._below] if line.foot or acts else []
            write(self._body, (first, *rest), "children")
        parts = (*([self._head] if line.head else []), self._body)
        write(self.widget, (*parts, *([below] if below is not None else [])), "children")


class Listing(Generic[Item]):
    """A list of items, one page at a time; `line(item)` is called for visible items only.

    The widget passed to `open` appears inside its item's box. As a sibling, it would make the page
    recreate the views of all subsequent items. A folded list has only its first items in the page,
    so that the page renders the visible part first.
    """

    def __init__(self, kit: Kit, line: Callable[[Item], ListItem], *, empty: str = "") -> None:
        self._kit = kit
        self._line = line
        self.empty = kit.markup(empty, "hermes-dim")
        self._rows: list[ItemWidgets] = []
        self._page = 0
        self._folded = False
        self._items: Sequence[Item] | None = None
        self._opened: tuple[str, widgets.Widget] | None = None
        self._before, self._after = kit.push(None, "hermes-link"), kit.push(None, "hermes-link")
        self._where = kit.markup("", "hermes-small", "hermes-dim")
        self._pager = kit.box(self._before.widget, self._where, self._after.widget, line=True)
        self.widget = kit.box()
        kit.listings.append(self)

    def show(self, items: Sequence[Item]) -> None:
        """Show these items, on the same page as before if that still exists."""
        self._items = items
        last = max(len(items) - 1, 0) // PAGE
        self._page = min(self._page, last)
        first = self._page * PAGE
        some = items[first : first + (FIRST if self._folded else PAGE)]
        children: list[widgets.Widget] = []
        for index, item in enumerate(some):
            if index == len(self._rows):
                self._rows.append(ItemWidgets(self._kit))
            line, below = self._line(item), self._opened
            self._rows[index].show(line, below[1] if below and below[0] == line.key else None)
            children.append(self._rows[index].widget)
        if last and not self._folded:
            write(self._where, f"{first + 1:,}–{min(first + PAGE, len(items)):,} of {len(items):,}")
            for made, by, label, tip, end in (
                (self._before, -1, "‹ back", "previous page", 0),
                (self._after, 1, "more ›", "next page", last),
            ):
                off = "no more pages" if self._page == end else ""
                made.show(Act(label, tip, partial(self._turn, by), off=off, here=True))
            children.append(self._pager)
        write(self.widget, tuple(children) or (self.empty,), "children")

    def fold(self, *, folded: bool = True) -> None:
        """Remove all but the first items from the page, or restore the others."""
        if folded == self._folded:
            return
        self._folded = folded
        if self._items is not None and folded:
            write(self.widget, self.widget.children[:FIRST], "children")
        elif self._items is not None:
            self.show(self._items)

    def open(self, key: str, below: widgets.Widget) -> None:
        """From the next `show`, display a widget below the item with this key; "" removes it."""
        self._opened = (key, below) if key else None

    def rewind(self) -> None:
        """Go back to the first page at the next `show`."""
        self._page = 0

    def _turn(self, by: int) -> None:
        self._page = max(self._page + by, 0)
        self.show(self._items or ())


def write(widget: widgets.Widget, value: object, name: str = "value") -> None:
    """Set a widget's value if it differs, so that unchanged values are not sent again."""
    if getattr(widget, name) != value:
        setattr(widget, name, value)

"""What the panel's tabs are made of: buttons, lists and fields, and what a click on them starts.

A list keeps the widgets of one page and writes other values into them: a thousand skills cost as
many widgets as twenty, and what did not change is not sent again.

A front end may deliver clicks on any thread (kernels with subshells do). Everything therefore
begins by going to the loop on which the panel was opened, where turns run as well; what reads files
or a database then goes to a thread, and only the loop touches widgets.
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
"""What a click does; it returns what to say, or raises an error whose text says it."""
Say = Callable[[str, Literal["status", "alert"]], None]
"""Shows one line of plain text, in the role that it has for screen readers."""
PAGE = 20
"""Lines of a list that are shown at a time."""
FIRST = 8
"""Lines of them that a list has in the page at first, where it was folded: about what is seen."""
TYPING = 0.3
"""Seconds without a key after which a search begins."""
QUERY = 500
"""Characters of what is typed into a line that are taken notice of."""
STYLES = {
    widgets.Text: TextStyle,
    widgets.Textarea: TextStyle,
    widgets.Dropdown: DescriptionStyle,
    widgets.Button: widgets.ButtonStyle,
}


class ActionRefused(HermesError):
    """What was asked for was not done; the text says why."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that can be done: a button; `off` says why it cannot be done now.

    What is done `here` only changes what is shown: it is done at once, whatever else is going on.
    """

    label: str
    tip: str
    do: Work = field(compare=False)
    _: KW_ONLY
    off: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListItem:
    """An item of a list, as HTML: `text`, below it `foot` and the buttons.

    `head` stands above it, as the heading of a group. `name` is a button before the text, for
    lists whose lines open.
    """

    key: str
    text: str
    foot: str = ""
    head: str = ""
    name: Act | None = None
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TabContext:
    """Where a tab lives: the agent it is about, what makes its widgets and runs what they do.

    `refresh()` reads and shows the tab again soon; it may be called from any thread.
    """

    agent: KernelAgent
    kit: Kit
    refresh: Callable[[], None]

    @property
    def actions(self) -> Actions:
        """What runs clicks, and brings whatever happens on another thread to the loop."""
        return self.kit.actions

    @property
    def busy(self) -> str:
        """Why what changes the conversation cannot be done now, "" if it can."""
        runs = self.agent.hub.running
        return "a turn is running; wait for it or stop it" if runs else ""


class Tab:
    """One tab of the panel: its widget, what is read for it, and when.

    `read` may block and runs in a thread; everything else is on the kernel's loop.
    """

    title = ""
    events: tuple[type, ...] = ()
    """Kinds of events of `hermes_nb.core.events` after which it is read anew."""

    def __init__(self, place: TabContext) -> None:
        self.place = place
        self.widget: widgets.Widget = place.kit.box()

    def read(self) -> object:
        """Return what there is to show now."""

    def show(self, found: Foreign) -> None:
        """Show what `read` returned."""

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event changes what is shown."""
        return isinstance(event, self.events)


class Actions:
    """Runs what was clicked, one after the other.

    `say` shows how it went and `after` is awaited then, both on `loop`.
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
        """Do some work and show its outcome; return at once, on any thread."""
        self.start(partial(self._perform, work))

    def start(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine on the loop; return at once, on any thread."""

        async def run() -> None:
            try:
                await begin()
            except Exception:  # of a refresh: the next one may do better
                logger.exception("the panel could not be brought up to date")

        def on_loop() -> None:
            task = asyncio.ensure_future(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.call(on_loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop soon; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the kernel ends
            self._loop.call_soon_threadsafe(function)

    def typed(self, function: Callable[[], None]) -> Callable[[object], None]:
        """Return an observer that calls a function when nothing was typed for `TYPING` seconds."""
        timer: asyncio.TimerHandle | None = None

        def wait() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
            timer = self._loop.call_later(TYPING, function)

        return lambda _: self.call(wait)

    async def settled(self) -> None:
        """Wait until nothing of what was begun is going on."""
        await asyncio.sleep(0)
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _perform(self, work: Work) -> None:
        async with self._one:
            try:
                done = work()
                said = (await done if inspect.isawaitable(done) else done) or ""
            except (HermesError, OSError, ValueError) as error:
                self._say(told(error), "alert")
            except Exception as error:
                logger.exception("a click in the panel failed")
                message = f"that failed, which is a fault of ours: {type(error).__name__}: {error}"
                self._say(one_line(redact(message), 300), "alert")
            else:
                self._say(said, "status")
        await self._after()


def told(error: Exception) -> str:
    """Return an error as one line."""
    return one_line(redact(capitalised(str(error) or type(error).__name__)), 300)


def outcome(message: str, *, done: bool) -> str:
    """Return what was done as a sentence; raise `ActionRefused` with the reason why it was not."""
    if not done:
        raise ActionRefused(message)
    return f"{capitalised(message)}."


class Markup(widgets.HTML):
    """HTML of ours, cleaned once more whenever it is set."""

    @traitlets.validate("value")
    def _cleaned(self, proposal: Mapping[str, object]) -> str:
        value = str(proposal["value"])
        return value if value == STYLE else clean_html(value)


class Kit:
    """Makes widgets, and closes all of them in the end.

    They share a few layout and style models, as each would be another message to the page. `tell`
    answers what the page sends them.
    """

    def __init__(self, actions: Actions, tell: Tell) -> None:
        self.actions = actions
        self.listings: list[Listing[Foreign]] = []
        self._tell = tell
        self._made: list[widgets.Widget] = []
        self._layout = self._kept(widgets.Layout())
        self._styles: dict[type, widgets.Style] = {}

    def make(
        self, kind: type[widgets.Widget], *classes: str, **traits: object
    ) -> widgets.DOMWidget:
        """Return a widget of a kind of `ipywidgets`, with classes of the stylesheet."""
        if (style := STYLES.get(kind)) is not None:
            if style not in self._styles:
                self._styles[style] = self._kept(style())
            traits["style"] = self._styles[style]
        names = tuple(filter(None, classes))
        return self._kept(kind(layout=self._layout, _dom_classes=names, **traits))

    def markup(self, value: str = "", *classes: str) -> widgets.HTML:
        """Return a widget that shows HTML; whoever makes `value` has escaped what is foreign."""
        return self.make(Markup, *classes, value=value)

    def box(self, *children: widgets.Widget, line: bool = False, css: str = "") -> widgets.Box:
        """Return widgets below one another or, with `line`, beside one another."""
        kind = widgets.HBox if line else widgets.VBox
        return self.make(kind, css or ("hermes-line" if line else ""), children=children)

    def field(
        self, hint: str, kind: type[widgets.Widget] = widgets.Text, **options: object
    ) -> widgets.Text:
        """Return a field to type in; `hint` is its name, also for those who do not see it."""
        return self.make(kind, placeholder=hint, tooltip=hint, **options)

    def push(self, act: Act | None = None, *classes: str) -> Push:
        """Return a button for an act, which may follow."""
        return Push(self, act, *classes)

    def close(self) -> None:
        while self._made:
            self._made.pop().close()

    def _kept(self, widget: widgets.Widget) -> widgets.Widget:
        self._made.append(widget)
        if widget.comm is not None:
            answered(widget, self._tell)
        return widget


STYLES[Markup] = HTMLStyle


class Push:
    """A button whose action can be exchanged; it does nothing while it is off."""

    def __init__(self, kit: Kit, act: Act | None, *classes: str) -> None:
        self.widget = kit.make(widgets.Button, *classes)
        self._actions = kit.actions
        self._act: Act | None = None
        self.widget.on_click(self._clicked)
        if act is not None:
            self.show(act)

    def show(self, act: Act) -> None:
        """Make it the button of this act."""
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
    """The buttons of one item, of which there are two sets: every other item has the other one.

    So a click on what a page still shows, when something else is there already, is about the item
    that was read there.
    """

    def __init__(self, kit: Kit, *classes: str) -> None:
        self._kit, self._classes = kit, classes
        self._shown: list[Push] = []
        self._others: list[Push] = []
        self._key = ""

    def show(self, key: str, acts: Sequence[Act]) -> tuple[widgets.Widget, ...]:
        """Make them the buttons of the item with this key, and return their widgets."""
        if key != self._key:
            self._key = key
            self._shown, self._others = self._others, self._shown
        for made, act in zip(self._shown, acts, strict=False):
            made.show(act)
        for act in acts[len(self._shown) :]:
            self._shown.append(Push(self._kit, act, *self._classes))
        return tuple(made.widget for made in self._shown[: len(acts)])


class ItemWidgets:
    """The widgets of one line."""

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
        """Show another line, or the same one as it is now, and what is open `below` it."""
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
    """A list of lines, a page at a time; `line(item)` is asked for what is shown alone.

    Below the line whose key was given to `open` stands another widget: in the line's own box, as a
    page makes all views anew that stand behind one which comes or goes. Folded, it has its first
    lines alone, so that a page that opens it draws what is seen before the rest.
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
        """Show these items, on the page that was looked at last as far as there still is one."""
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
                (self._before, -1, "‹ back", "the page before", 0),
                (self._after, 1, "more ›", "the next page", last),
            ):
                off = "there is none" if self._page == end else ""
                made.show(Act(label, tip, partial(self._turn, by), off=off, here=True))
            children.append(self._pager)
        write(self.widget, tuple(children) or (self.empty,), "children")

    def fold(self, *, folded: bool = True) -> None:
        """Have the first lines alone in the page from now on, or all of them again."""
        if folded == self._folded:
            return
        self._folded = folded
        if self._items is not None and folded:
            write(self.widget, self.widget.children[:FIRST], "children")
        elif self._items is not None:
            self.show(self._items)

    def open(self, key: str, below: widgets.Widget) -> None:
        """Put a widget below the line with this key from the next `show` on; "" takes it away."""
        self._opened = (key, below) if key else None

    def rewind(self) -> None:
        self._page = 0

    def _turn(self, by: int) -> None:
        self._page = max(self._page + by, 0)
        self.show(self._items or ())


def write(widget: widgets.Widget, value: object, name: str = "value") -> None:
    """Set a widget's value; one that it has already is not sent again."""
    if getattr(widget, name) != value:
        setattr(widget, name, value)

"""The widgets that all four tabs are made of: buttons, lists of lines, fields.

A list keeps the widgets of one page and writes other values into them: a thousand skills cost as
many widgets as twenty, and what did not change is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import ipywidgets as widgets
import traitlets
from ipywidgets.widgets.widget_description import DescriptionStyle
from ipywidgets.widgets.widget_string import HTMLStyle, TextStyle

from hermes_nb.notebook.page_reload import Tell, answered
from hermes_nb.notebook.panels.style import STYLE
from hermes_nb.safety.markdown import clean_html

Item = TypeVar("Item")
PAGE = 20
"""Lines of a list that are shown at a time."""
FIRST = 8
"""Lines of them that a list has in the page at first, where it was folded: about what is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that can be done with a line: a button; `off` says why it cannot be done now."""

    label: str
    tip: str
    do: Callable[[], None] = field(compare=False)
    off: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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


class Markup(widgets.HTML):
    """HTML of ours, cleaned once more whenever it is set."""

    @traitlets.validate("value")
    def _cleaned(self, proposal: Any) -> str:  # noqa: ANN401 - traitlets' Bunch
        value = str(proposal["value"])
        return value if value == STYLE else clean_html(value)


class Kit:
    """Makes widgets, and closes all of them in the end.

    They share a few layout and style models, as each would be another message to the page. `tell`
    answers what the page sends them.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.listings: list[Listing[Any]] = []
        self._made: list[Any] = []
        self._layout = self._kept(widgets.Layout())
        self._styles: dict[type, Any] = {}

    def markup(self, value: str = "", *classes: str) -> Any:  # noqa: ANN401 - untyped library
        """Return a widget that shows HTML; whoever makes `value` has escaped what is foreign."""
        return self._widget(Markup, HTMLStyle, *classes, value=value)

    def box(self, *children: Any, line: bool = False, css: str = "") -> Any:  # noqa: ANN401
        """Return widgets below one another or, with `line`, beside one another."""
        made = widgets.HBox if line else widgets.VBox
        css = css or ("hermes-line" if line else "")
        return self._widget(made, None, css, children=children)

    def field(self, hint: str, **options: Any) -> Any:  # noqa: ANN401 - untyped library
        """Return a line to type in; `hint` is its name, also for those who do not see it."""
        return self._widget(widgets.Text, TextStyle, "", placeholder=hint, tooltip=hint, **options)

    def area(self, hint: str) -> Any:  # noqa: ANN401 - untyped library
        """Return a field of several lines."""
        return self._widget(widgets.Textarea, TextStyle, "", placeholder=hint, tooltip=hint, rows=4)

    def choice(self, hint: str, options: Sequence[tuple[str, str]]) -> Any:  # noqa: ANN401 - untyped library
        """Return a list to choose from, of what is shown and what is meant."""
        return self._widget(
            widgets.Dropdown, DescriptionStyle, "", tooltip=hint, options=tuple(options)
        )

    def button(self, *classes: str) -> Any:  # noqa: ANN401 - untyped library
        """Return a bare button."""
        return self._widget(widgets.Button, widgets.ButtonStyle, *classes)

    def tab(self, children: Sequence[Any], titles: Sequence[str]) -> Any:  # noqa: ANN401
        """Return a box with tabs."""
        return self._widget(
            widgets.Tab, None, "", children=tuple(children), titles=tuple(titles), selected_index=0
        )

    def close(self) -> None:
        """Close everything that was made."""
        while self._made:
            self._made.pop().close()

    def _widget(self, kind: Any, style: Any, *classes: str, **traits: Any) -> Any:  # noqa: ANN401
        if style is not None:
            if style not in self._styles:
                self._styles[style] = self._kept(style())
            traits["style"] = self._styles[style]
        names = tuple(filter(None, classes))
        return self._kept(kind(layout=self._layout, _dom_classes=names, **traits))

    def _kept(self, widget: Any) -> Any:  # noqa: ANN401 - untyped library
        self._made.append(widget)
        if widget.comm is not None:
            answered(widget, self._tell)
        return widget


class Push:
    """A button whose action can be exchanged; it does nothing while it is off."""

    def __init__(self, kit: Kit, *classes: str) -> None:
        self.widget = kit.button(*classes)
        self._act: Act | None = None
        self.widget.on_click(self._clicked)

    def show(self, act: Act) -> None:
        """Make it the button of this act."""
        if act != self._act:
            with self.widget.hold_sync():
                self.widget.description = act.label
                self.widget.tooltip = f"{act.tip}: {act.off}" if act.off else act.tip
                self.widget.disabled = bool(act.off)
        self._act = act

    def _clicked(self, _: object) -> None:
        if self._act is not None and not self._act.off:
            self._act.do()


def push(kit: Kit, act: Act, *classes: str) -> Push:
    """Return a button for an act."""
    made = Push(kit, *classes)
    made.show(act)
    return made


class Buttons:
    """The buttons of one line: its name, if that opens it, and what can be done with it."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._name = Push(kit, "hermes-link", "hermes-name")
        self._acts: list[Push] = []

    def show(self, line: Line) -> None:
        """Make them the buttons of a line."""
        while len(self._acts) < len(line.acts):
            self._acts.append(Push(self._kit, "hermes-link"))
        for made, act in zip(self._acts, line.acts, strict=False):
            made.show(act)
        if line.name is not None:
            self._name.show(line.name)

    def top(self, line: Line) -> tuple[Any, ...]:
        """Return the widgets that stand before the text of the line that is shown."""
        return (self._name.widget,) if line.name else ()

    def below(self, line: Line) -> tuple[Any, ...]:
        """Return those that stand below it."""
        return tuple(made.widget for made in self._acts[: len(line.acts)])


class Row:
    """The widgets of one line.

    It has two sets of buttons and turns to the other one with every other item: a click on what a
    page still shows, when the list has changed already, is about the item that was read there.
    """

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._head = kit.markup()
        self._text = kit.markup()
        self._foot = kit.markup("", "hermes-small", "hermes-dim")
        self._buttons = Buttons(kit)
        self._others: Buttons | None = None
        self._top = kit.box(line=True, css="hermes-foot")
        self._below = kit.box(line=True, css="hermes-foot")
        self._body = kit.box(css="hermes-row")
        self.widget = kit.box(self._body)
        self._line: Line | None = None

    def show(self, line: Line, below: Any = None) -> None:  # noqa: ANN401 - ipywidgets has no types
        """Show another line, or the same one as it is now, and what is open `below` it."""
        if line == self._line:
            self._buttons.show(line)
        else:
            self._fill(line)
        parts = (*([self._head] if line.head else []), self._body)
        _set(self.widget, "children", (*parts, *([below] if below is not None else [])))

    def _fill(self, line: Line) -> None:
        if self._line is not None and self._line.key != line.key:
            self._buttons, self._others = self._others or Buttons(self._kit), self._buttons
        self._line = line
        _set(self._head, "value", line.head)
        _set(self._text, "value", line.text)
        _set(self._foot, "value", line.foot)
        self._buttons.show(line)
        acts = self._buttons.below(line)
        _set(self._below, "children", (*([self._foot] if line.foot else []), *acts))
        name = self._buttons.top(line)
        _set(self._top, "children", (*name, self._text) if name else ())
        first = (self._top if name else self._text,)
        _set(self._body, "children", (*first, *([self._below] if line.foot or acts else [])))


class Listing(Generic[Item]):
    """A list of lines, a page at a time; `line(item)` is asked for what is shown alone.

    `moved` is called when another page is wanted, and has to call `show` again. Below the line
    whose key was given to `open` stands another widget: in the line's own box, as a page makes all
    views anew that stand behind one which comes or goes. Folded, it has its first lines alone, so
    that a page that opens it draws what is seen before the rest.
    """

    def __init__(
        self, kit: Kit, line: Callable[[Item], Line], *, moved: Callable[[], None], empty: str = ""
    ) -> None:
        self._kit = kit
        self._line = line
        self._moved = moved
        self._empty = kit.markup(empty, "hermes-dim")
        self._rows: list[Row] = []
        self._page = 0
        self._folded = False
        self._items: Sequence[Item] | None = None
        self._opened: tuple[str, Any] | None = None
        self._before, self._after = Push(kit, "hermes-link"), Push(kit, "hermes-link")
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
        children: list[Any] = []
        for index, item in enumerate(some):
            if index == len(self._rows):
                self._rows.append(Row(self._kit))
            line, below = self._line(item), self._opened
            self._rows[index].show(line, below[1] if below and below[0] == line.key else None)
            children.append(self._rows[index].widget)
        if last and not self._folded:
            self._turn_pages(first, len(items), last)
            children.append(self._pager)
        _set(self.widget, "children", tuple(children) or (self._empty,))

    def fold(self, *, folded: bool = True) -> None:
        """Have the first lines alone in the page from now on, or all of them again."""
        if folded == self._folded:
            return
        self._folded = folded
        if self._items is not None and folded:
            _set(self.widget, "children", self.widget.children[:FIRST])
        elif self._items is not None:
            self.show(self._items)

    def open(self, key: str, below: Any) -> None:  # noqa: ANN401 - ipywidgets has no types
        """Put a widget below the line with this key from the next `show` on; "" takes it away."""
        self._opened = (key, below) if key else None

    @property
    def opened(self) -> str:
        """The key of the line that is open, or ""."""
        return self._opened[0] if self._opened else ""

    def rewind(self) -> None:
        """Begin at the first page again."""
        self._page = 0

    def _turn_pages(self, first: int, count: int, last: int) -> None:
        _set(self._where, "value", f"{first + 1:,}–{min(first + PAGE, count):,} of {count:,}")
        back, on = (partial(self._go, by) for by in (-1, 1))
        none = "there is none"
        off = none if self._page == 0 else ""
        self._before.show(Act(label="‹ back", tip="the page before", do=back, off=off))
        off = none if self._page == last else ""
        self._after.show(Act(label="more ›", tip="the next page", do=on, off=off))

    def _go(self, by: int) -> None:
        self._page = max(self._page + by, 0)
        self._moved()


def write(widget: Any, value: Any, name: str = "value") -> None:  # noqa: ANN401 - ipywidgets
    """Set a widget's value; one that it has already is not sent again."""
    _set(widget, name, value)


def _set(widget: Any, name: str, value: Any) -> None:  # noqa: ANN401 - ipywidgets
    if getattr(widget, name) != value:
        setattr(widget, name, value)

"""The Skills tab: what procedures there are, how far each is trusted, and how to change that."""

from __future__ import annotations

from collections.abc import Callable

from hermes_nb.agent.prompt_sources import Knowledge
from hermes_nb.core.calls import in_thread
from hermes_nb.core.events import BackgroundEvent, Event, ReviewFinished, ToolFinished
from hermes_nb.core.text import number_of, one_line
from hermes_nb.notebook.panels.acting import QUERY, Pause, Refused
from hermes_nb.notebook.panels.parts import PAGE, Act, Line, Listing, Push, push, write
from hermes_nb.notebook.panels.shelves import FROM, Shelves, look
from hermes_nb.notebook.panels.skills_glance import drawn, glimpses
from hermes_nb.notebook.panels.style import (
    WHOLE,
    caution,
    dim,
    document,
    group,
    heading,
    shown,
    tag,
    two,
)
from hermes_nb.notebook.panels.tab import Place
from hermes_nb.notebook.panels.waiting import Queue, Waiting
from hermes_nb.safety.visible import visible
from hermes_nb.skills.catalogue import Skill, Skipped
from hermes_nb.skills.discovery import decoded, read_regular
from hermes_nb.skills.editing import Outcome

EVERY = "every category"


class SkillsTab:
    """Skills by category, with search; one of them can be open."""

    title = "Skills"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: Knowledge = place.resident.knowledge
        self._now = Shelves()
        self._queue = Queue()
        self._waiting = Waiting(place, "skills", moved=self.redraw)
        self._open: Skill | Skipped | None = None
        kit = place.kit
        self._query = kit.field("Search skills")
        self._query.observe(Pause(place.actions, self._search), names="value")
        self._category = kit.choice("Category", ((EVERY, ""),))
        self._category.observe(self._chosen, names="value")
        self._detail = _Detail(place, self)
        self._first = kit.markup()
        self._looked = False
        self._skills = Listing[tuple[str, Skill]](
            kit, self._line, moved=self.redraw, empty="No skill fits."
        )
        self._skipped_head = kit.markup()
        self._skipped = Listing[Skipped](kit, self._skipped_line, moved=self.redraw)
        self._undo = Push(kit, "hermes-link")
        self._undoing = kit.box()
        self.widget = kit.box(
            self._waiting.widget,
            kit.box(self._query, self._category, line=True),
            self._undoing,
            self._first,
            self._skills.widget,
            self._skipped_head,
            self._skipped.widget,
        )

    def read(self) -> tuple[Shelves, Queue]:
        """Return what fits the search, and what waits to be changed.

        The first time a page of skills is shown meanwhile, if there is more than that.
        """
        if not self._looked:
            first = glimpses(self._known.library.roots, PAGE)
            if len(first) == PAGE:
                self._place.actions.call(lambda: self._glance(drawn(first)))
        found = look(self._known, self._query.value[:QUERY], self._category.value or "")
        return found, self._waiting.read()

    def show(self, found: tuple[Shelves, Queue]) -> None:
        """Show it."""
        self._looked = True
        write(self._first, "")
        self._now, self._queue = found
        self._draw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event is about skills."""
        if isinstance(event, ToolFinished):
            return event.call.name.startswith("skill")
        return isinstance(event, ReviewFinished)

    def redraw(self) -> None:
        """Show again what was read last; from any thread."""
        self._place.actions.call(self._draw)

    def close_detail(self) -> None:
        """Show no skill in full any more."""
        self._open = None
        self.redraw()

    def _chosen(self, _: object) -> None:
        self._place.actions.call(self._search)

    def _search(self) -> None:
        self._skills.rewind()
        self._place.refresh()

    def _glance(self, rows: str) -> None:
        if not self._looked:
            write(self._first, rows)

    def _draw(self) -> None:
        now = self._now
        self._waiting.show(self._queue)
        write(self._query, f"Search {now.total:,} skills", "placeholder")
        counts = ((f"{shown_name(name)} ({count})", name) for name, count in now.categories)
        options = ((EVERY, ""), *counts)
        if tuple(self._category.options) != options:
            chosen = self._category.value
            self._category.options = options  # which chooses the first one
            self._category.value = chosen if chosen in dict(now.categories) else ""
        self._undo.show(
            Act(
                label=shown_name(now.undoable),
                tip="take back the last change of a skill",
                do=self._taking_back(now.undoable),
            )
        )
        write(self._undoing, (self._undo.widget,) if now.undoable else (), "children")
        key = _key(self._open) if self._open is not None else ""
        self._skills.open(key, self._detail.widget)
        self._skipped.open(key, self._detail.widget)
        self._skills.show(now.skills)
        count = len(now.skipped)
        write(self._skipped_head, heading("Not offered", str(count)) if count else "")
        self._skipped.show(now.skipped)

    def _line(self, item: tuple[str, Skill]) -> Line:
        head, skill = item
        opened = self._open is not None and _key(self._open) == _key(skill)
        used = f"{skill.usage.uses}×" if skill.usage.uses else "–"
        tags = [tag(FROM[skill.source])]
        if skill.marks:
            tags.append(tag("marked"))
        if not skill.enabled:
            tags.append(tag("off"))
        name = Act(
            label=shown_name(skill.name),
            tip="close" if opened else "show what it says",
            do=self.close_detail if opened else self._place.doing(lambda: self._view(skill)),
        )
        return Line(
            key=_key(skill),
            head=group(shown(head, 60)) if head else "",
            name=name,
            text=f"{' '.join(tags)} {dim(used)}",
            foot=shown(skill.description, 90),
        )

    def _skipped_line(self, skipped: Skipped) -> Line:
        opened = self._open is not None and _key(self._open) == _key(skipped)
        act = Act(
            label="close" if opened else "review",
            tip="read it, and trust it if it is fine",
            do=self.close_detail if opened else self._place.doing(lambda: self._review(skipped)),
        )
        return Line(
            key=_key(skipped),
            text=two(shown(skipped.name, 64), tag(FROM[skipped.source])),
            foot=shown(skipped.reason, 200),
            acts=(act,) if skipped.source == "workdir" else (),
        )

    async def _view(self, skill: Skill) -> str:
        view = await in_thread(lambda: self._known.library.view(skill.name, counted=False))
        self._open = skill
        files = number_of(len(view.files), "more file") if view.files else "no other files"
        marks = "".join(caution(shown(mark, 300)) for mark in view.marks)
        place = shown("/".join(view.directory.parts[-3:]), 80)
        about = f"<small>…/{place} · {files}</small>"
        self._detail.show(f"{about}{marks}{document(view.text)}", skill)
        self._draw()  # not only once the list has been read again, behind a search that may be slow
        return ""

    async def _review(self, skipped: Skipped) -> str:
        text, _ = decoded(await in_thread(lambda: read_regular(skipped.path)))
        self._open = skipped
        self._detail.ask(document(text), skipped, text)
        self._draw()
        return ""

    def _taking_back(self, shown: str) -> Callable[[], None]:
        """Return a click that takes back the last change, if that is still the one shown."""
        library = self._known.library

        async def work() -> str:
            if await in_thread(lambda: library.preview("undo")) != shown:
                message = f"not done, the last change is another one by now: it was to {shown}"
                raise Refused(message)
            return await self._managed("undo", "")

        return self._place.doing(work)

    def managing(self, action: str, name: str) -> Callable[[], None]:
        """Return a click that changes the library, as the magic does."""
        return self._place.doing(lambda: self._managed(action, name))

    async def _managed(self, action: str, name: str) -> str:
        outcome: Outcome = await in_thread(lambda: self._known.library.manage(action, name))
        if not outcome.applied:
            raise Refused(outcome.message)
        self._open = None
        return outcome.message[:1].upper() + outcome.message[1:] + "."

    def switching(self, skill: Skill, *, on: bool) -> Callable[[], None]:
        """Return a click that switches a skill on or off."""

        async def work() -> str:
            await in_thread(lambda: self._known.library.switch(skill.name, on=on))
            self._open = None
            return f"Skill {skill.name!r} is {'on' if on else 'off'}."

        return self._place.doing(work)

    def trusting(self, skipped: Skipped, text: str) -> Callable[[], None]:
        """Return a click that accepts a project's skill, with just the text that was read."""

        async def work() -> str:
            await in_thread(lambda: self._known.trust.accept(skipped.path, text))
            self._open = None
            return f"Skill {skipped.name!r} is trusted as it is now."

        return self._place.doing(work)


class _Detail:
    """A skill in full, and what can be done with it.

    As a `Row` it has two sets of buttons and turns to the other one with every other skill.
    """

    def __init__(self, place: Place, tab: SkillsTab) -> None:
        self._tab = tab
        self._text = place.kit.markup()
        nothing = Act(label="", tip="", do=tab.close_detail)
        self._acts, self._others = ([push(place.kit, nothing) for _ in range(3)] for _ in range(2))
        self._key = ""
        self._line = place.kit.box(line=True)
        self.widget = place.kit.box(self._text, self._line)

    def show(self, about: str, skill: Skill) -> None:
        """Show a skill of the library."""
        on = skill.enabled
        home = skill.source == "home"
        self._fill(
            _key(skill),
            about,
            Act(
                label="Turn off" if on else "Turn on",
                tip="the agent no longer sees it" if on else "the agent sees it again",
                do=self._tab.switching(skill, on=not on),
            ),
            Act(
                label="Delete",
                tip="delete this skill; it can be undone",
                do=self._tab.managing("delete", skill.name),
                off="" if home else f"it is not yours ({FROM[skill.source]}); turn it off instead",
            ),
            Act(
                label="Undo",
                tip="take back the last change of this skill",
                do=self._tab.managing("undo", skill.name),
                off="" if home else "it has not been changed",
            ),
        )

    def ask(self, about: str, skipped: Skipped, text: str) -> None:
        """Show a skill that is not trusted yet."""
        self._fill(
            _key(skipped),
            about,
            Act(
                label="Trust it as it is",
                tip="the agent may follow it until its text changes",
                do=self._tab.trusting(skipped, text),
                off="it is too long to be shown here; read the file, then %hermes trust"
                if len(text) > WHOLE
                else "",
            ),
            Act(label="Close", tip="leave it untrusted", do=self._tab.close_detail),
        )

    def _fill(self, key: str, about: str, *acts: Act) -> None:
        if key != self._key:
            self._key = key
            self._acts, self._others = self._others, self._acts
        write(self._text, about)
        for made, act in zip(self._acts, acts, strict=False):
            made.show(act)
        write(self._line, tuple(made.widget for made in self._acts[: len(acts)]), "children")


def shown_name(name: str) -> str:
    """Return a name for a button, which shows plain text."""
    return visible(one_line(name, 64))


def _key(item: Skill | Skipped) -> str:
    return str(item.file) if isinstance(item, Skill) else f"not offered: {item.path}"

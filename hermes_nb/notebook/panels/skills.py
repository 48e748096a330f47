"""The Skills tab: the available skills, their sources and trust, and controls to change them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from ipywidgets import Dropdown

from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import BackgroundEvent, Event, ReviewFinished, ToolFinished
from hermes_nb.core.text import number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.panels.memory import PendingProposals, PendingSection
from hermes_nb.notebook.panels.style import (
    WHOLE,
    caution,
    dim,
    document,
    group,
    heading,
    shown,
    tag,
    two_columns,
)
from hermes_nb.notebook.panels.widgets import (
    QUERY,
    Act,
    ActionRefused,
    Buttons,
    Listing,
    ListItem,
    Tab,
    TabContext,
    outcome,
    write,
)
from hermes_nb.skills.catalogue import Skill, SkippedSkill
from hermes_nb.skills.discovery import decoded, read_regular
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.prompt_index import GENERAL

EVERY = "every category"
FROM = {
    "workdir": "project",
    "home": "yours",
    "external": "external",
    "shared": "shared",
    "admin": "site",
    "shipped": "shipped",
}
"""Labels of sources, with the keys of `skills.roots.Source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsState:
    """The tab's state."""

    skills: tuple[tuple[str, Skill], ...] = ()
    """The matching skills, each with the heading above it or ""."""
    total: int = 0
    """Number of all skills."""
    categories: tuple[tuple[str, int], ...] = ()
    """All categories with their skill counts."""
    skipped: tuple[SkippedSkill, ...] = ()
    """Skills that were not loaded."""
    undoable: str = ""
    """Description of what undo would do, or "" if there is nothing to undo."""


def read_skills(known: PromptSources, query: str, category: str) -> SkillsState:
    """Read the matching skills, each with the heading above it or ""."""
    library = known.library
    every = library.list(all_of_them=True)
    counts = Counter(skill.category or GENERAL for skill in every)
    fitting = library.list(category, query, all_of_them=True) if query or category else every
    headed: list[tuple[str, Skill]] = []
    above = ""
    for skill in fitting:
        name = skill.category or GENERAL
        headed.append(("" if query.strip() or name == above else name, skill))
        above = name
    try:
        undoable = library.preview("undo")
    except SkillError:
        undoable = ""
    return SkillsState(
        skills=tuple(headed),
        total=len(every),
        categories=tuple(sorted(counts.items())),
        skipped=tuple(library.skipped()),
        undoable="" if undoable == "nothing to undo" else undoable,
    )


class SkillsTab(Tab):
    """Skills by category, with search; one of them can be open."""

    title = "Skills"
    events = (ReviewFinished,)

    def __init__(self, place: TabContext) -> None:
        super().__init__(place)
        self._known: PromptSources = place.agent.knowledge
        self._now = SkillsState()
        self._queue = PendingProposals()
        self._waiting = PendingSection(place, "skills")
        self._open: Skill | SkippedSkill | None = None
        kit = place.kit
        self._query = kit.field("Search skills")
        self._query.observe(place.actions.typed(self._search), names="value")
        self._category = kit.make(Dropdown, tooltip="Category", options=((EVERY, ""),))
        self._category.observe(self._search, names="value")
        self._detail_text = kit.markup()
        self._detail_acts = Buttons(kit)
        self._detail_line = kit.box(line=True)
        self._detail = kit.box(self._detail_text, self._detail_line)
        self._skills = Listing[tuple[str, Skill]](kit, self._line, empty="No skill matches.")
        self._skipped_head = kit.markup()
        self._skipped = Listing[SkippedSkill](kit, self._skipped_line)
        self._undo = kit.push(None, "hermes-link")
        self._undoing = kit.box()
        self.widget.children = (
            self._waiting.widget,
            kit.box(self._query, self._category, line=True),
            self._undoing,
            self._skills.widget,
            self._skipped_head,
            self._skipped.widget,
        )

    def read(self) -> tuple[SkillsState, PendingProposals]:
        """Return the state to show."""
        found = read_skills(self._known, self._query.value[:QUERY], self._category.value or "")
        return found, self._waiting.read()

    def show(self, found: tuple[SkillsState, PendingProposals]) -> None:
        """Show a state."""
        self._now, self._queue = found
        self._draw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Return whether an event changes the tab."""
        if isinstance(event, ToolFinished):
            return event.call.name.startswith("skill")
        return super().concerned(event)

    def _search(self, _: object = None) -> None:
        self.place.actions.call(self._skills.rewind)
        self.place.refresh()

    def _close(self) -> None:
        self._open = None
        self._draw()

    def _draw(self) -> None:
        now = self._now
        self._waiting.show(self._queue)
        write(self._query, f"Search {now.total:,} skills", "placeholder")
        counts = ((f"{_plain(name)} ({count})", name) for name, count in now.categories)
        options = ((EVERY, ""), *counts)
        if tuple(self._category.options) != options:
            chosen = self._category.value
            self._category.options = options  # this selects the first one
            self._category.value = chosen if chosen in dict(now.categories) else ""
        self._undo.show(
            Act(
                _plain(now.undoable),
                "undo the last change to a skill",
                partial(self._take_back, now.undoable),
            )
        )
        write(self._undoing, (self._undo.widget,) if now.undoable else (), "children")
        key = _key(self._open) if self._open is not None else ""
        self._skills.open(key, self._detail)
        self._skipped.open(key, self._detail)
        self._skills.show(now.skills)
        count = len(now.skipped)
        write(self._skipped_head, heading("Not offered", str(count)) if count else "")
        self._skipped.show(now.skipped)

    def _line(self, item: tuple[str, Skill]) -> ListItem:
        head, skill = item
        opened = self._open is not None and _key(self._open) == _key(skill)
        used = f"{skill.usage.uses}×" if skill.usage.uses else "not used yet"
        marks = (("marked", skill.marks), ("off", not skill.enabled))
        tags = [tag(FROM[skill.source]), *(tag(mark) for mark, is_so in marks if is_so)]
        name = Act(
            _plain(skill.name),
            "close" if opened else "show its text",
            self._close if opened else partial(self._view, skill),
            here=opened,
        )
        return ListItem(
            key=_key(skill),
            head=group(shown(head, 60)) if head else "",
            name=name,
            text=f"{' '.join(tags)} {dim(used)}",
            foot=shown(skill.description, 90),
        )

    def _skipped_line(self, skipped: SkippedSkill) -> ListItem:
        opened = self._open is not None and _key(self._open) == _key(skipped)
        act = Act(
            "close" if opened else "review",
            "read it, then decide whether to trust it",
            self._close if opened else partial(self._review, skipped),
            here=opened,
        )
        return ListItem(
            key=_key(skipped),
            text=two_columns(shown(skipped.name, 64), tag(FROM[skipped.source])),
            foot=shown(skipped.reason, 200),
            acts=(act,) if skipped.source == "workdir" else (),
        )

    async def _view(self, skill: Skill) -> None:
        view = await in_thread(self._known.library.view, skill.name, counted=False)
        files = number_of(len(view.files), "more file") if view.files else "no other files"
        marks = "".join(caution(shown(mark, 300)) for mark in view.marks)
        place = shown("/".join(view.directory.parts[-3:]), 80)
        about = f"<small>…/{place} · {files}</small>"
        on, home = skill.enabled, skill.source == "home"
        whose = f"it is not your skill ({FROM[skill.source]}); turn it off instead"
        self._show_detail(
            skill,
            f"{about}{marks}{document(view.text)}",
            Act(
                "Turn off" if on else "Turn on",
                "hide it from Hermes" if on else "offer it to Hermes again",
                partial(self._switch, skill, on=not on),
            ),
            Act(
                "Delete",
                "delete this skill; you can undo it",
                partial(self._manage, "delete", skill.name),
                off="" if home else whose,
            ),
            Act(
                "Undo",
                "undo the last change of this skill",
                partial(self._manage, "undo", skill.name),
                off="" if home else "it has not been changed",
            ),
        )

    async def _review(self, skipped: SkippedSkill) -> None:
        text, _ = decoded(await in_thread(read_regular, skipped.path))
        too_long = "too long for the panel; read the file, then run %hermes trust"
        self._show_detail(
            skipped,
            document(text),
            Act(
                "Trust this version",
                "Hermes may follow it until its text changes",
                partial(self._trust, skipped, text),
                off=too_long if len(text) > WHOLE else "",
            ),
            Act("Close", "do not trust it", self._close, here=True),
        )

    def _show_detail(self, about: Skill | SkippedSkill, markup: str, *acts: Act) -> None:
        """Open a skill immediately, without reading the list again, which may be slow."""
        self._open = about
        write(self._detail_text, markup)
        write(self._detail_line, self._detail_acts.show(_key(about), acts), "children")
        self._draw()

    async def _take_back(self, shown: str) -> str:
        """Undo the last change, if it is still the one that the user was shown."""
        if await in_thread(self._known.library.preview, "undo") != shown:
            raise ActionRefused(f"not undone: another change was made since; you saw {shown}")
        return await self._manage("undo", "")

    async def _manage(self, action: str, name: str) -> str:
        done = await in_thread(self._known.library.manage, action, name)
        told = outcome(done.message, done=done.applied)
        self._open = None
        return told

    async def _switch(self, skill: Skill, *, on: bool) -> str:
        await in_thread(self._known.library.switch, skill.name, on=on)
        self._open = None
        return f"Skill {skill.name!r} is {'on' if on else 'off'}."

    async def _trust(self, skipped: SkippedSkill, text: str) -> str:
        """Trust a project's skill, but only if its text is exactly what the user was shown."""
        await in_thread(self._known.trust.accept, skipped.path, text)
        self._open = None
        return f"Skill {skipped.name!r} is trusted as it is now."


def _plain(name: str) -> str:
    return visible(one_line(name, 64))


def _key(item: Skill | SkippedSkill) -> str:
    return str(item.file) if isinstance(item, Skill) else f"not offered: {item.path}"

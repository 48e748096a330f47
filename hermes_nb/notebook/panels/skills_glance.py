"""The first page of the Skills tab, there before the library has read and examined everything.

The first look at a thousand skills takes 0.7 s of CPU, nearly all of it for what is on no page yet.
Here folders are listed only as far as a page needs, and only a page of documents is opened. It is
for the user's eyes alone: nothing of it goes to a model, and nothing of it can be clicked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from hermes_nb.core.text import one_line
from hermes_nb.notebook.panels.shelves import FROM
from hermes_nb.notebook.panels.style import dim, group, shown, tag, two
from hermes_nb.skills.catalogue import GENERAL
from hermes_nb.skills.discovery import Root, decoded, read_regular
from hermes_nb.skills.document import SkillError, read_document

ENTRIES = 5_000
"""Entries of a folder that are looked at; `discovery.FOLDERS` of a root are read in the end."""
MORE = "All of them are being read …"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """A skill as its folder and the head of its document have it; nobody has examined it yet."""

    name: str
    category: str
    description: str
    root: Root


def glimpses(roots: Sequence[Root], count: int) -> list[Glimpse]:
    """Return the first skills by category and name, at most `count`.

    What the working directory brings is left out: whether it is trusted takes a closer look. So
    are links, and categories within categories.
    """
    found: list[Glimpse] = []
    names: set[str] = set()
    wanted = [root for root in roots if root.source != "workdir"]
    for category, folder, path, root in merge(*map(_folders, wanted), key=lambda each: each[:2]):
        if len(found) == count:
            break
        if folder in names:  # of one name, the one that comes first in `roots` counts
            continue
        try:
            text, _ = decoded(read_regular(os.path.join(path, "SKILL.md")))  # noqa: PTH118
            document = read_document(text, folder=folder)
        except (OSError, SkillError):  # the library says what is wrong with it
            continue
        names.add(folder)
        found.append(
            Glimpse(
                name=document.name,
                category=category or document.category,
                description=document.description,
                root=root,
            )
        )
    return found


def drawn(found: Sequence[Glimpse]) -> str:
    """Return the rows as HTML, as the tab draws them, and that there is more to come."""
    rows: list[str] = []
    above = ""
    for each in found:
        category = each.category or GENERAL
        if category != above:
            rows.append(group(shown(category, 60)))
        above = category
        line = two(shown(one_line(each.name, 64), 64), tag(FROM[each.root.source]))
        foot = f"<small>{shown(each.description, 90)}</small>"
        rows.append(f'<div class="hermes-row">{line}{foot}</div>')
    return f'{"".join(rows)}<div role="status"><small>{dim(MORE)}</small></div>'


def _folders(root: Root) -> Iterator[tuple[str, str, str, Root]]:
    """Yield category, name and path of the folders with a document, in order, as they are asked."""
    base = str(root.path)
    categories: list[tuple[str, str]] = []
    for name, path in _inside(base):
        if _has_document(path):
            yield "", name, path, root
        else:
            categories.append((name, path))
    for category, place in categories:
        for name, path in _inside(place):
            if _has_document(path):
                yield category, name, path, root


def _inside(folder: str) -> list[tuple[str, str]]:
    """Return the names and paths of the folders in a folder, by name; none where it is none."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.path)
                for entry in islice(entries, ENTRIES)
                if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def _has_document(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "SKILL.md"))  # noqa: PTH110, PTH118 - a thousand

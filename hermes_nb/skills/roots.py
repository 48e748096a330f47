"""Where skills come from, in the order in which they win, and how far each place is trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["workdir", "home", "external", "admin", "shipped"]


@dataclass(frozen=True, slots=True)
class Root:
    """A directory of skills and where it belongs.

    What is shipped is not examined. Everything else is refused when it is dangerous; `external`
    directories and an administrator's, which somebody chose, also say where they come from. What
    the working directory brings loads only once the user accepted it, and is examined strictly.
    """

    path: Path
    source: Source = "external"

    @property
    def examined(self) -> bool:
        """Whether its skills are scanned at all."""
        return self.source != "shipped"

    @property
    def strict(self) -> bool:
        """Whether what would be marked elsewhere is refused here."""
        return self.source == "workdir"

    @property
    def vouched(self) -> bool:
        """Whether a text from here is shown without a word on where it came from."""
        return self.source in ("shipped", "home")


def standard_roots(
    home: Path,
    *,
    workdir: Path | None = None,
    external: Iterable[str | Path] = (),
    admin: Iterable[Path] = (),
    shipped: Path | None = None,
) -> list[Root]:
    """Return the search path: working directory, home, external, administrator's, shipped.

    `home` and `workdir` are the directories that hold a `skills/`; `external` entries may begin
    with `~`. Nothing has to exist.
    """
    roots = [Root(workdir / "skills", "workdir")] if workdir else []
    roots.append(Root(home / "skills", "home"))
    roots += [Root(Path(entry).expanduser(), "external") for entry in external]
    roots += [Root(path, "admin") for path in admin]
    if shipped:
        roots.append(Root(shipped, "shipped"))
    return roots


def as_roots(roots: Iterable[Root | Path | str]) -> list[Root]:
    """Return roots as they are; plain paths become the home's, the first one, and external ones.

    With a home among the roots, every plain path is external.
    """
    given = list(roots)
    has_home = any(isinstance(root, Root) and root.source == "home" for root in given)
    result: list[Root] = []
    for root in given:
        if isinstance(root, Root):
            result.append(root)
            continue
        result.append(Root(Path(root), "external" if has_home else "home"))
        has_home = True
    return result

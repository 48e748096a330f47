"""Where a cassette lies and whether it runs: what the agent of one kernel or script records with.

Nothing is read or written before a model that the deck wraps is asked, and nothing of what that
takes is imported as long as the deck is off.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import ChatModel
from hermes_nb.models.modes import Mode, mode_named

if TYPE_CHECKING:
    from hermes_nb.models.replay.canonical import Canon, Normaliser
    from hermes_nb.models.replay.mismatch import CassetteMiss
    from hermes_nb.models.replay.tape import Tape

SUFFIX = ".hermes.jsonl"
"""What a cassette beside a notebook is called, behind the notebook's own name."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Files of a cassette: `path` is written, `also` are read; `private` is for the owner alone."""

    path: Path
    also: tuple[Path, ...] = ()
    private: bool = False


class Deck:
    """Wraps models so that they record or replay, all on one tape.

    `mode` is what the settings say, asked until `switch` says otherwise; `shelf` says where the
    files are, when the tape is first needed; `personal` returns the layers of the running system
    prompt that come from the user's own home. `home` is the Hermes home.
    """

    def __init__(
        self,
        *,
        mode: Callable[[], str],
        shelf: Callable[[], Shelf],
        home: Callable[[], Path],
        personal: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.normalisers: list[Normaliser] = []
        self.last_miss: CassetteMiss | None = None
        self._mode = mode
        self._switched: Mode | None = None
        self._shelf = shelf
        self._tape: Tape | None = None
        self._home = home
        self._personal = personal
        self._canon: Canon | None = None

    @property
    def mode(self) -> Mode:
        """What is done now."""
        return self._switched or mode_named(self._mode() or "off")

    @property
    def on(self) -> bool:
        """Whether anything is recorded or replayed, so that a story begins at its beginning."""
        return self.mode != "off"

    @property
    def tape(self) -> Tape:
        """The tape, chosen on first use."""
        if self._tape is None:
            from hermes_nb.models.replay.tape import Tape

            shelf = self._shelf()
            self._tape = Tape(shelf.path, also=shelf.also, private=shelf.private)
        return self._tape

    def switch(self, mode: Mode) -> None:
        """Do this from now on, as a new run; models have to be wrapped anew."""
        self._switched = mode
        self.last_miss = None
        self._tape = None

    def wrap(self, make: Callable[[], ChatModel], *, name: str = "") -> ChatModel:
        """Return the model that `make` makes, on the tape unless that is off.

        A replay makes none. `auto` does without one as long as everything is recorded. `name` is
        the model that is wanted, as the settings name it.
        """
        mode = self.mode
        if mode == "off":
            return make()
        from hermes_nb.models.cassette import Cassette
        from hermes_nb.models.profiles import EMBEDDED

        model: ChatModel | Callable[[], ChatModel] | None = None
        if mode == "record":
            model = make()
        elif mode == "auto":
            try:
                model = make()
            except ConfigError:
                model = make  # which says once more what is missing, if it is asked
        canon = self._canon = self._canon or self._own_canon()
        wanted = EMBEDDED if name == "embedded" else name
        return Cassette(model, self.tape, mode, name=wanted, canon=canon, missed=self._note_miss)

    def _own_canon(self) -> Canon:
        from hermes_nb.models.replay.canonical import Canon
        from hermes_nb.models.replay.volatile import Places

        return Canon(
            places=lambda: Places.here(self._home()),
            personal=self._personal,
            normalisers=self.normalisers,
        )

    def _note_miss(self, miss: CassetteMiss) -> None:
        self.last_miss = miss


def shelf_for(
    *, notebook: str = "", explicit: str = "", home: Path, mode: Mode, cwd: Path | None = None
) -> Shelf:
    """Return where the cassette of a notebook or a script lies.

    `explicit` names the file. Else it lies beside the notebook, as `NAME.hermes.jsonl`. A run that
    does not know its notebook (nbclient, papermill, nbval) or has none records below the home and
    replays from every cassette in its working directory as well: a request has one key, wherever
    its recording lies.
    """
    if explicit:
        return Shelf(Path(explicit).expanduser().absolute())
    if notebook:
        path = Path(notebook)
        return Shelf(path.with_name(path.stem + SUFFIX))
    here = cwd or Path.cwd()
    own = home / "cassettes" / f"{_story(here)}.jsonl"
    also = () if mode == "record" else tuple(sorted(here.glob(f"*{SUFFIX}")))
    return Shelf(own, also, private=True)


def _story(cwd: Path) -> str:
    """Return a name for what runs in a directory: its script's, or else the directory's own."""
    script = Path(sys.argv[0] if sys.argv else "")
    known = script.suffix == ".py" and script.is_file() and "site-packages" not in script.parts
    name = script.stem if known and not script.stem.startswith("ipykernel") else cwd.name
    where = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:8]
    return f"{name or 'root'}-{where}"

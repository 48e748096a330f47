"""The agent's access to its notebook: find its path, open it, and track the cells it has seen.

The path comes from the first of these that is available:

1. the path that the user set
2. the open page's path, under the server's root
3. the server's session list, correct even after a rename (24 ms)
4. VS Code's variable
5. `JPY_SESSION_NAME`, outdated after a rename

jupyter_server is not imported, because importing it in a kernel takes 15 s.

An open notebook is only edited through its page, so that unsaved input is kept and each edit is one
step in the front end's undo history. Its file is not written while a session has it open. A closed
notebook is edited on disk if the user has configured its path. If neither is possible, cells are
offered below the running one.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Json
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place
from hermes_nb.notebook.document.document import (
    Cell,
    Delete,
    Edit,
    FallbackDocument,
    Insert,
    Move,
    NotebookDocument,
    Replace,
    SetOutputs,
)
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.document.ipynb import CLIPPED
from hermes_nb.notebook.document.outline import SeenCells, name_of
from hermes_nb.notebook.document.outline_updates import CellsAbove
from hermes_nb.notebook.execute.cell_runs import runs_of, stale_line
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_discovery import Info
from hermes_nb.notebook.shell import Shell, has_kernel, is_message, running_cell
from hermes_nb.safety.marks import Marks, marks_of

if TYPE_CHECKING:
    from hermes_nb.notebook.document.undo import CellKeeper
    from hermes_nb.notebook.kernel_settings import KernelSettings

OUTPUT_CAP = 1_000_000
"""Maximum characters of an output sent by the page; longer ones are cut and marked `CLIPPED`."""
SAVE_SECONDS = 20.0
"""Timeout for saving the notebook."""


class LiveDocument(NotebookDocument):
    """A notebook that is open in a front end, accessed through its page."""

    way = "the open notebook"

    def __init__(self, frontend: FrontEnd, info: Info) -> None:
        self._call = frontend.call
        self.info = info

    @property
    def selected(self) -> str:
        return self.info.active

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""
        found = await self._call("list", timeout=10, outputs=outputs, cap=OUTPUT_CAP)
        return [_cell(each) for each in found]

    async def sketch(self) -> list[Cell]:
        """Return the cells with only the types of their outputs; the values are empty."""
        return [_cell(each) for each in await self._call("list", timeout=10, outputs="kinds")]

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""
        return _cell(await self._call("get", timeout=10, id=cell_id, cap=OUTPUT_CAP))

    async def apply(self, edit: Edit) -> Cell | None:
        """Make an edit in the page; raise `ToolError` for outputs that were truncated when read."""
        match edit:
            case Insert():
                return _cell(await self._call("insert", **asdict(edit)))
            case Replace(cell_id, source, seen, review):
                found = await self._call(
                    "replace", id=cell_id, source=source, hash=seen, review=review
                )
                return _cell(found)
            case Delete(cell_id, seen):
                await self._call("delete", id=cell_id, hash=seen)
                return None
            case Move(cell_id, after):
                return _cell(await self._call("move", id=cell_id, after=after))
            case SetOutputs(cell_id, outputs, count):
                if any(CLIPPED in output for output in outputs):
                    message = (
                        f"these outputs of cell {cell_id!r} were truncated when they were read"
                    )
                    raise ToolError(message)
                joined = [_joined(output) for output in outputs]
                asked = {"id": cell_id, "outputs": joined, "execution_count": count}
                return _cell(await self._call("outputs", timeout=20, **asked))

    async def save(self) -> None:
        """Save the notebook, like the user's own save command."""
        await self._call("save", timeout=SAVE_SECONDS)


def _cell(found: Mapping[str, Json]) -> Cell:
    known = {name: found[name] for name in Cell.__slots__ if name in found}
    return Cell(**known)


def _joined(output: Mapping[str, Json]) -> dict[str, Json]:
    """Return an output with its text as one string: the front end would join a list with commas."""
    text = output.get("text")
    return {**output, "text": "".join(text)} if isinstance(text, list) else dict(output)


TIMEOUT = 1.0
"""Seconds to wait for each server's response."""
FRESH = 8
"""Maximum number of server files to try: the parent process's file, and the newest ones."""


def notebook_path(namespace: Mapping[str, Json], *, explicit: str = "", open_path: str = "") -> str:
    """Return the absolute path of the notebook, or "" if it cannot be found.

    `open_path` is `Info.path`, the path of the notebook in its page, relative to the server's root.
    If that root cannot be found on this machine, `open_path` is returned unchanged.
    """
    if explicit:
        return str(Path(explicit).expanduser().absolute())
    found = _from_server(open_path)
    if not found and open_path:
        return _below_a_root(open_path)
    found = found or namespace.get("__vsc_ipynb_file__") or _from_environment()
    return str(Path(found).absolute()) if found else ""


def is_open(path: str) -> bool:
    """Return whether any server on this machine has a session for the notebook at that path."""
    wanted = os.path.realpath(path)
    return any(
        os.path.realpath(Path(server.get("root_dir") or "") / str(session.get("path"))) == wanted
        for server in _servers()
        for session in _sessions(server)
        if session.get("path")
    )


def kernel_id() -> str:
    """Return this kernel's id as its server knows it, or "" outside a kernel."""
    from ipykernel.connect import get_connection_file

    try:
        name = Path(get_connection_file()).stem
    except (RuntimeError, OSError):
        return ""
    return name.removeprefix("kernel-")


def _from_server(open_path: str = "") -> str:
    """Ask the servers on this machine for the path of this kernel's notebook.

    With `open_path`, a server only provides its root: several notebooks may share one kernel, and
    the page knows its own path.
    """
    mine = kernel_id()
    if not mine:
        return ""
    for server in _servers():
        for session in _sessions(server):
            if (session.get("kernel") or {}).get("id") == mine and session.get("path"):
                return str(Path(server.get("root_dir") or "") / (open_path or session["path"]))
    return ""


def _below_a_root(open_path: str) -> str:
    """Make a page's path absolute, based on the working directory or `JPY_SESSION_NAME`.

    A kernel starts in its notebook's directory, so that directory ends with the page's folder.
    """
    started_for = Path(_from_environment())
    for place in (started_for, Path.cwd() / Path(open_path).name):
        if (
            place.is_absolute()
            and place.parts[-len(Path(open_path).parts) :] == Path(open_path).parts
        ):
            return str(place)
    return open_path


def _from_environment() -> str:
    name = os.environ.get("JPY_SESSION_NAME", "")
    return name if name.endswith(".ipynb") else ""


def _servers() -> Iterator[Mapping[str, Json]]:
    """Yield the contents of server files: the parent's first, then the newest."""
    from jupyter_core.paths import jupyter_runtime_dir

    parent = os.environ.get("JPY_PARENT_PID", "")

    def order(path: Path) -> tuple[bool, float]:
        return path.stem != f"jpserver-{parent}", -path.stat().st_mtime

    try:
        files = sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json"), key=order)[:FRESH]
    except OSError:
        return
    for file in files:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and str(document.get("url", "")).startswith("http"):
            yield document


def _sessions(server: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    request = urllib.request.Request(f"{server['url']}api/sessions")  # noqa: S310 - checked: http
    if token := server.get("token"):
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            listed = json.loads(response.read())
    except (OSError, ValueError):
        return []
    return listed if isinstance(listed, list) else []


class NotebookAccess:
    """One kernel's notebook."""

    def __init__(
        self,
        shell: Shell,
        settings: KernelSettings,
        *,
        moved: Callable[[str, str], None],
        frontend: FrontEnd | None = None,
    ) -> None:
        """Create the access.

        Args:
            shell: the kernel's IPython shell
            settings: provide the Hermes directory, and the notebook's path if the user set it
            moved: called with the old and new paths ("" if unknown) when the path changes
            frontend: the notebook's page, or None to create it here
        """
        self.frontend = frontend or FrontEnd(shell)
        self.seen = SeenCells()
        self.stale_before: frozenset[str] | None = None
        """Ids of the cells that were certainly stale when the turn began; None if unknown."""
        self._shell = shell
        self._settings = settings
        self._moved = moved
        self._checkpoints: Checkpoints | None = None
        self._keeper: CellKeeper | None = None
        self._path: str | None = None
        self._probed: tuple[str, int, str] | None = None

    @property
    def path(self) -> str:
        """The notebook's absolute path, or "" if it cannot be found."""
        if self._path is None:
            self._path = self._find()
        return self._path

    @property
    def checkpoints(self) -> Checkpoints:
        """The states saved for undo, from this session and others."""
        if self._checkpoints is None:
            self._checkpoints = Checkpoints(self._home / "checkpoints")
        return self._checkpoints

    @property
    def _home(self) -> Path:
        return self._settings.now().home

    async def document(self, place: Place) -> NotebookDocument:
        """Return the notebook; its edits are recorded so that the turn in `place` can be undone.

        If the page is reloading, wait for it; if it does not return, fall back to the file or to
        cells below the running one. Raises `ToolError` if the page's extension is a different
        version.
        """
        document = await self._reach(place, await self.frontend.present())
        if isinstance(document, FallbackDocument):
            return document
        from hermes_nb.notebook.document.undo import CellKeeper

        if self._keeper is None:
            self._keeper = CellKeeper(self.checkpoints)
        return self._keeper.kept(document, self.path or document.way, place)

    @property
    def marks(self) -> Marks:
        """The register of untrusted content in the Hermes directory."""
        return marks_of(self._home)

    def foreign(self, source: str) -> bool:
        """Return whether a cell's source contains untrusted content."""
        return self.marks.holds_text(source)

    def here(self) -> str:
        """Return the id of the cell that a turn refers to, or "" if unknown.

        This is the running cell, or the selected one for prompts from the panel.
        """
        page = self.frontend.page
        return running_cell(self._shell) or (page.active if page is not None else "")

    async def site(self, session: str, turn: int, *, look: bool) -> Place:
        """Return a turn's place; with `look`, find the notebook again if it was renamed."""
        place = Place(session=session, turn=turn, cell=running_cell(self._shell))
        if look and (place.cell or self.frontend.in_lab):
            with suppress(ToolError):  # the notebook tools report the reason
                await self._reach(place, await self.frontend.known())
        return replace(place, notebook=self.path)

    async def above(self, place: Place) -> CellsAbove | None:
        """Return the notebook with the cells above the running one.

        For prompts from the panel, these are the cells down to and including the selected one. None
        if the notebook cannot be read or does not contain that cell.
        """
        self.stale_before, running = None, running_cell(self._shell)
        if not (running or self.frontend.in_lab):
            return None
        try:
            document = await self._reach(place, await self.frontend.known())
            cells = [] if isinstance(document, FallbackDocument) else await document.sketch()
        except ToolError:  # the turn continues without it; the notebook tools report the reason
            return None
        here = self.here()
        index = next((cell.index for cell in cells if cell.id == here), None)
        if index is None:
            return None
        stale = runs_of(self._shell).stale(cells)
        self.stale_before = frozenset(key for key, each in stale.items() if each.certain)
        return CellsAbove(
            stale=stale_line(stale, cells),
            way=document.way,
            cells=cells,
            end=index if running else index + 1,
            running=bool(running),
            changed=self.seen.changes(document.way, cells),
        )

    async def stale(self) -> dict[str, str]:
        """Return ids and names of certainly stale cells; empty if the notebook cannot be read."""
        try:
            document = await self._reach(Place(), await self.frontend.known())
            cells = [] if isinstance(document, FallbackDocument) else await document.cells()
        except ToolError:
            return {}
        names = {cell.id: name_of(cell) for cell in cells}
        found = runs_of(self._shell).stale(cells)
        return {key: names[key] for key, each in found.items() if each.certain}

    async def cell_above(self, place: Place) -> Cell | None:
        """Return the nearest cell above the running one that is neither empty nor a prompt.

        None if the notebook cannot be read or has no such cell.
        """
        try:
            document = await self._reach(place, await self.frontend.present())
            cells = [] if isinstance(document, FallbackDocument) else await document.cells()
        except ToolError:
            return None
        for cell in reversed(_before(cells, running_cell(self._shell))):
            if cell.source.strip() and not is_message(cell.source):
                return cell
        return None

    def learn(self, cell: Mapping[str, Json]) -> None:
        """Record that the agent has seen a cell in the state in which its edit was approved."""
        self.seen.learn(LiveDocument.way, [_cell(cell)])

    async def look(self) -> str:
        """Find the notebook's path again, in case it was renamed, and return it."""
        page = await self.frontend.present() if self.frontend.page is not None else None
        await self._look_at(page.path if page is not None else "")
        return self.path

    async def _reach(self, place: Place, page: Info | None) -> NotebookDocument:
        """Return the notebook in its page; the path is looked up again once per turn and page."""
        if page is not None:
            mark = (place.session, place.turn, page.name)
            if self._probed != mark:
                await self._look_at(page.path)
                self._probed = mark
            return LiveDocument(self.frontend, page)
        if self.frontend.problem:
            raise ToolError(self.frontend.problem)
        named = self._settings.now().notebook
        if named and not await in_thread(is_open, self.path):
            return FileDocument(Path(self.path), keep=self._home / "checkpoints")
        return FallbackDocument(self._shell)

    async def _look_at(self, open_path: str) -> None:
        """Find the notebook's path again; `open_path` is the path of its page."""
        before, self._path = self._path or "", await in_thread(self._find, open_path)
        if self._path != before:
            self._moved(before, self._path)

    def _find(self, open_path: str = "") -> str:
        explicit = self._settings.now().notebook
        if not (explicit or has_kernel(self._shell)):
            return ""
        return notebook_path(self._shell.user_ns, explicit=explicit, open_path=open_path)


def _before(cells: list[Cell], running: str) -> list[Cell]:
    for position, cell in enumerate(cells):
        if cell.id == running:
            return cells[:position]
    return []

"""Which notebook this kernel belongs to.

In this order: what the caller says > what the open page says, below the server's root > the
server's session list, right even after a rename (24 ms) > VS Code's variable > `JPY_SESSION_NAME`,
stale after a rename > unknown. jupyter_server is not imported: in a kernel that takes 15 s.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TIMEOUT = 1.0
"""Seconds for one server to answer."""
FRESH = 8
"""At most this many of the newest server files are asked."""


def notebook_path(namespace: Mapping[str, Any], *, explicit: str = "", open_path: str = "") -> str:
    """Return the absolute path of the notebook, or "" when there is none to be found.

    `open_path` is `Info.path`, what the page calls the notebook that it shows. It is relative to
    the server's root; where nothing on this machine tells that root, it is returned as it is.
    """
    if explicit:
        return str(Path(explicit).expanduser().absolute())
    found = _from_server(open_path)
    if not found and open_path:
        return _below_a_root(open_path)
    found = found or namespace.get("__vsc_ipynb_file__") or _from_environment()
    return str(Path(found).absolute()) if found else ""


def is_open(path: str) -> bool:
    """Say whether any server of this machine has a session for the notebook at that path."""
    wanted = os.path.realpath(path)
    return any(
        os.path.realpath(Path(server.get("root_dir") or "") / str(session.get("path"))) == wanted
        for server in _servers()
        for session in _sessions(server)
        if session.get("path")
    )


def kernel_id() -> str:
    """Return this kernel's id as its server knows it, "" outside of a kernel."""
    from ipykernel.connect import get_connection_file

    try:
        name = Path(get_connection_file()).stem
    except (RuntimeError, OSError):
        return ""
    return name.removeprefix("kernel-")


def _from_server(open_path: str = "") -> str:
    """Ask the servers of this machine which notebook runs this kernel.

    With `open_path`, only the root of the server that runs it is in question: of several notebooks
    on one kernel the page knows which one it shows.
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
    """Complete a page's path by the kernel's own places: its directory, or what it was started for.

    A kernel starts in its notebook's directory, so that the directory ends as the path does.
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


def _servers() -> Iterator[Mapping[str, Any]]:
    """Yield what the server files say, our parent's first, then the newest."""
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


def _sessions(server: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    request = urllib.request.Request(f"{server['url']}api/sessions")  # noqa: S310 - checked: http
    if token := server.get("token"):
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            listed = json.loads(response.read())
    except (OSError, ValueError):
        return []
    return listed if isinstance(listed, list) else []

"""What an installation needs, looked at from outside of any kernel: each finding says what to do.

Nothing is sent anywhere, beyond the ports of this machine where a local model may answer: whether a
key is taken is for `endpoints` to find out. A key is only ever said to be there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hermes_nb
from hermes_nb.app.config import Settings
from hermes_nb.core.errors import HermesError
from hermes_nb.core.protocols import Variable
from hermes_nb.safety.sandbox import level

State = Literal["ok", "note", "problem"]
MARKS: dict[State, str] = {"ok": "✓", "note": "–", "problem": "✗"}
EXTENSION = "hermes-nb"
"""The labextension's name, and its folder's."""
OTHER = "jupyter-ai-hermes-magics"
"""A package whose magics have the names of ours; it speaks with the command-line Hermes Agent."""
SHOWN_PACKAGES = (
    *("ipython", "ipykernel", "ipywidgets", "openai", "jupyterlab", "notebook"),
    OTHER,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; `text` says what to do where something is to be done."""

    name: str
    state: State
    text: str

    @property
    def marked(self) -> str:
        """The text behind a mark for its state."""
        return f"{MARKS[self.state]} {self.text}"


Check = Callable[[], Finding]


def look(checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    """Run checks; an error that says what to do is a finding, and the others go on."""
    found = []
    for name, check in checks:
        try:
            found.append(check())
        except HermesError as error:
            found.append(Finding(name, "problem", str(error)))
    return found


def versions() -> Finding:
    """Return which versions are here, and requirements that are not met."""
    here = [
        f"hermes_nb {hermes_nb.__version__}",
        f"Python {'.'.join(map(str, sys.version_info[:3]))}",
    ]
    for package in SHOWN_PACKAGES:
        version = _version(package)
        here += [f"{package} {version}"] if version else []
    if unmet := _unmet():
        return Finding("versions", "problem", f"{', '.join(unmet)}; `pip install -U hermes_nb`")
    if OTHER in " ".join(here):
        told = f"{OTHER} has a `%%hermes` too: the one loaded last counts, `%reload_ext hermes_nb`"
        return Finding("versions", "note", f"{', '.join(here)}; {told} takes it back")
    return Finding("versions", "ok", ", ".join(here))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _unmet() -> list[str]:
    """Return the requirements that what is installed does not meet."""
    from packaging.requirements import Requirement

    unmet = []
    for text in importlib.metadata.requires("hermes_nb") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        here = _version(wanted.name)
        if not here:
            unmet.append(f"{wanted.name} is missing")
        elif not wanted.specifier.contains(here, prereleases=True):
            unmet.append(f"{wanted.name} is {here}, not {wanted.specifier}")
    return unmet


def model(settings: Settings, variables: Callable[[], Sequence[Variable]] = tuple) -> Finding:
    """Return which model would answer; a replay asks none, so none is looked for."""
    from hermes_nb.app.models import build_model, embedded_notice, not_accepted

    if settings.cassette == "replay":
        return _replay(settings)
    found = build_model(settings, variables=variables)
    if embedded_notice(found) is None:
        where = settings.endpoint.base_url
        return Finding("model", "ok", f"{found.name}" + (f" at {where}" if where else ""))
    text = f"the built-in {found.name}. For real work: %hermes key, or HERMES_NB_MODEL"
    return Finding("model", "ok", "; ".join([text, *not_accepted(settings)]))


def _replay(settings: Settings) -> Finding:
    file = settings.cassette_file
    if file and not Path(file).is_file():
        return Finding(
            "model", "problem", f"there is no cassette {file} to replay; record it first"
        )
    where = f"of {file}" if file else "of the cassette beside each notebook"
    return Finding("model", "ok", f"replay {where}: no model is asked or looked for")


def weights() -> Finding:
    """Return whether the embedded model could answer without a network."""
    from importlib.util import find_spec

    from hermes_nb.models.weights.store import locate

    if find_spec("xllamacpp") is None:
        return Finding(
            "weights", "note", 'no built-in model: `pip install "hermes_nb[local]"` adds it'
        )
    if locate() is None:
        told = "those of the built-in model are not here; a turn that needs them asks first"
        return Finding("weights", "note", told)
    return Finding("weights", "ok", "those of the built-in model are here, and the right bytes")


def key(settings: Settings) -> Finding:
    """Return whether a key is set; never the key."""
    if settings.endpoint.api_key:
        provider = "OPENROUTER" if "openrouter" in settings.endpoint.base_url else "OPENAI"
        where = settings.sources.get("api_key") or f"{provider}_API_KEY"
        return Finding("key", "ok", f"there is one ({where}); it is never shown")
    return Finding(
        "key",
        "note",
        "there is none: `%hermes key` asks for one; local and built-in models need none",
    )


def home(settings: Settings) -> Finding:
    """Return whether the home can be written, and whether others can read its secrets."""
    folder = settings.home
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        told = (
            f"{nearest} cannot be written, so nothing is kept; set HERMES_HOME to a folder of yours"
        )
        return Finding("home", "problem", told)
    secrets = folder / ".env"
    if os.name == "posix" and secrets.is_file() and _others_read(secrets):
        return Finding("home", "problem", f"others can read {secrets}: `chmod 600 {secrets}`")
    return Finding(
        "home", "ok", f"{folder}" + ("" if folder.exists() else ", made by the first turn")
    )


def _others_read(file: Path) -> bool:
    return bool(file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def sessions(settings: Settings) -> Finding:
    """Return whether the session store can be read."""
    from hermes_nb.app.build import open_store

    told: list[str] = []
    file = settings.home / "notebook.db"
    if not file.exists():
        return Finding("sessions", "ok", "none yet")
    store = open_store(settings, told.append)
    try:
        latest = store.sessions(limit=1)
    finally:
        store.close()
    if told:
        return Finding("sessions", "note", " ".join(told))
    return Finding("sessions", "ok", f"{file}, last “{latest[0].title}”" if latest else f"{file}")


def labextension() -> Finding:
    """Return whether pages of a Jupyter server in this environment have our half of the bridge."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    folders = [Path(each) / EXTENSION for each in jupyter_path("labextensions")]
    here = next((each for each in folders if (each / "package.json").is_file()), None)
    if here is None:
        told = (
            "is not installed, so turns cannot edit an open notebook: install hermes_nb where the "
        )
        return Finding("labextension", "note", told + "Jupyter server runs")
    package = _json(here / "package.json")
    entry = package.get("jupyterlab", {}).get("_build", {}).get("load", "")
    if not (here / str(entry).partition("?")[0]).is_file():  # behind it stands a hash
        return Finding("labextension", "problem", f"{here} is damaged; reinstall hermes_nb")
    if package.get("version") != hermes_nb.__version__:
        told = (
            f"{here} is of version {package.get('version')}; reinstall hermes_nb, reload the page"
        )
        return Finding("labextension", "problem", told)
    for folder in jupyter_config_path():
        page = _json(Path(folder) / "labconfig" / "page_config.json")
        if _names(page.get("disabledExtensions")).get(EXTENSION):
            told = f"is disabled in {folder}: `jupyter labextension enable {EXTENSION}`"
            return Finding("labextension", "problem", told)
    return Finding("labextension", "ok", f"{here}, for JupyterLab and Notebook 7")


def _json(file: Path) -> dict[str, Any]:
    """Return a JSON object, {} where there is none: these files are Jupyter's to complain about."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _names(disabled: object) -> dict[str, bool]:
    """Return which extensions are disabled; JupyterLab writes them both ways."""
    if isinstance(disabled, dict):
        return {str(name): bool(is_so) for name, is_so in disabled.items()}
    return {str(name): True for name in disabled} if isinstance(disabled, list) else {}


def sandbox() -> Finding:
    """Return what confines commands."""
    slow = "" if shutil.which("rg") else "; ripgrep is not installed, so searching is slower"
    return Finding("sandbox", "ok" if level().name != "none" else "note", f"{sandbox_told()}{slow}")


def sandbox_told() -> str:
    """Return what confines commands on this machine, and why it is not more."""
    found = level()
    why = f" ({found.why})" if found.why else ""
    if found.name == "none":
        return f"none{why}: only commands that are known to read run unasked"
    return f"{found.name}{why}: other commands run unasked where they can only read"

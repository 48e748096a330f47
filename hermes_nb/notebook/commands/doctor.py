"""Check what a turn requires and advise on problems, inside or outside a kernel.

The only network requests go to the servers in the settings: each is asked for its list of models,
which is free, with a short timeout. Keys are never shown; the report only says whether they exist.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import os
import shutil
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import urlsplit

import hermes_nb
from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.settings.endpoints import key_variable
from hermes_nb.core.errors import HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.threads import in_thread
from hermes_nb.models.installed import Endpoint, Variables, is_installed
from hermes_nb.models.profiles import is_address, traits_of
from hermes_nb.models.servers import LOCAL_SERVERS, SECONDS, Kind, ServerResponse, proxy_for, reach
from hermes_nb.notebook.display.tables import facts
from hermes_nb.notebook.shell import Foreign, can_ask, has_kernel
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.redact import redact
from hermes_nb.safety.sandbox import level

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hermes_nb.notebook.kernel_agent import KernelAgent


State = Literal["ok", "note", "problem"]
MARKS: dict[State, str] = {"ok": "✓", "note": "–", "problem": "✗"}
"""The symbol for each state."""
EXTENSION = "hermes-nb"
"""Name of the labextension and its folder."""
OTHER = "jupyter-ai-hermes-magics"
"""A package for the command-line Hermes Agent whose magics have the same names."""
SHOWN_PACKAGES = ("ipython", "ipykernel", "ipywidgets", "openai", "jupyterlab", "notebook", OTHER)
"""Packages whose versions are reported."""
OPENAI = "https://api.openai.com/v1"
NEAR = 3
"""Number of similar model names to suggest."""
KEYS = "`%hermes key` asks for one and saves it; or set OPENAI_API_KEY in the environment"
"""Advice on setting a key."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    state: State
    """Either "ok", "note" for a harmless limitation, or "problem"."""
    text: str
    """The finding, with advice if the user should do something."""
    name: str = ""
    """Title of its row; "" to use the check's name."""

    @property
    def marked(self) -> str:
        """The finding, preceded by the symbol of its state."""
        return f"{MARKS[self.state]} {self.text}"


Check = Callable[[], CheckResult | list[CheckResult]]
GROUP = "hermes_nb.doctor"
"""Entry point group for additional checks; each entry point's name is the title of its row."""


def installed() -> dict[str, Check]:
    """Return the checks from other packages; one that fails to load reports a problem."""

    def check(point: EntryPoint) -> CheckResult | list[CheckResult]:
        return cast("Check", loaded(point))()

    return {point.name: partial(check, point) for point in plugins(GROUP)}


def run_checks(checks: Mapping[str, Check]) -> list[CheckResult]:
    """Run checks by name; a `HermesError` becomes a problem, and the other checks continue."""
    found: list[CheckResult] = []
    for name, check in checks.items():
        try:
            made = check()
        except HermesError as error:
            made = CheckResult("problem", str(error))
        some = made if isinstance(made, list) else [made]
        found += [replace(each, name=each.name or name) for each in some]
    return found


async def doctor(agent: KernelAgent, given: Namespace) -> str:
    """Check what a turn in this kernel requires, and advise on problems.

    Servers in the settings are asked for their models, unless `--offline` is given.
    """
    settings = agent.settings()
    replayed = agent.deck.tape.path if agent.deck.mode == "replay" else None
    asks = not (given.offline or replayed or agent.models.given)
    checks: dict[str, Check] = {
        "versions": versions,
        "model": partial(model, settings, agent.variables, replayed),
        "key": partial(key, settings),
        **({"answer": partial(endpoints, settings)} if asks else {}),
        **installed(),
        "home": partial(home, settings),
        "sessions": partial(sessions, settings),
        "policy": settled,
    }
    found = await in_thread(run_checks, checks)
    found += [replace(await _front_end(agent), name="front end"), *run_checks({"sandbox": sandbox})]
    return facts([(finding.name, finding.marked) for finding in found])


async def _front_end(agent: KernelAgent) -> CheckResult:
    page = await agent.access.frontend.probe()
    if page is not None:
        return CheckResult("ok", f"{page.app} shows {page.path}; cells can be read and edited")
    if agent.access.frontend.problem:
        return CheckResult("problem", agent.access.frontend.problem)
    where = "a Jupyter kernel" if has_kernel(agent.shell) else "a terminal"
    if can_ask(agent.shell):
        return CheckResult("ok", f"{where}; risky calls ask first")
    return CheckResult("ok", f"{where}, not interactive: risky calls need `approve all`")


def versions() -> CheckResult:
    """Report versions and unmet requirements."""
    here = [
        f"hermes_nb {hermes_nb.__version__}",
        f"Python {'.'.join(map(str, sys.version_info[:3]))}",
    ]
    for package in SHOWN_PACKAGES:
        version = _version(package)
        here += [f"{package} {version}"] if version else []
    if unmet := _unmet():
        return CheckResult("problem", f"{', '.join(unmet)}; `pip install -U hermes_nb`")
    if OTHER in " ".join(here):
        text = (
            f"{OTHER} also defines `%%hermes`; the one loaded last is used: `%reload_ext hermes_nb`"
        )
        return CheckResult("note", f"{', '.join(here)}; {text} undoes it")
    return CheckResult("ok", ", ".join(here))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _unmet() -> list[str]:
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


def model(
    settings: Settings,
    variables: Variables = tuple,
    replayed: Path | None = None,
) -> CheckResult:
    """Report the model that would answer; replaying a cassette doesn't need one."""
    from hermes_nb.agent.models import build_model, not_accepted

    if replayed is not None:
        return CheckResult("ok", f"replay of {replayed}: no model is used")
    if settings.cassette == "replay":
        file = settings.cassette_file
        if file and not Path(file).is_file():
            return CheckResult("problem", f"there is no cassette {file} to replay; record it first")
        where = f"of {file}" if file else "of the cassette next to each notebook"
        return CheckResult("ok", f"replay {where}: no model is used")
    found = build_model(settings, variables=variables)
    if not traits_of(found).small:
        where = settings.endpoint.base_url
        return CheckResult("ok", f"{found.name}" + (f" at {where}" if where else ""))
    text = f"the built-in {found.name}. For real work: %hermes key, or HERMES_NB_MODEL"
    return CheckResult("ok", "; ".join([text, *not_accepted(settings)]))


def key(settings: Settings) -> CheckResult:
    """Report whether a key is set, without showing it."""
    if settings.endpoint.api_key:
        where = settings.sources.get("api_key") or settings.values.get("key_env")
        host = urlsplit(settings.endpoint.base_url).hostname or ""
        where = where or key_variable(host, os.environ)
        return CheckResult("ok", f"one is set ({where}); it is never shown")
    return CheckResult(
        "note",
        "none is set: `%hermes key` asks for one; local and built-in models need none",
    )


def home(settings: Settings) -> CheckResult:
    """Report whether the home is writable, and whether other users can read its secrets."""
    folder = settings.home
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        text = (
            f"{nearest} cannot be written, so nothing is saved; set HERMES_HOME to a folder "
            "that you can write to"
        )
        return CheckResult("problem", text)
    secrets = folder / ".env"
    others = stat.S_IRWXG | stat.S_IRWXO
    if os.name == "posix" and secrets.is_file() and secrets.stat().st_mode & others:
        return CheckResult("problem", f"others can read {secrets}: `chmod 600 {secrets}`")
    made = "" if folder.exists() else ", created by the first turn"
    return CheckResult("ok", f"{folder}{made}")


def sessions(settings: Settings) -> CheckResult:
    """Report whether the session store is readable."""
    from hermes_nb.agent.session.stores import is_stored, open_store

    parts: list[str] = []
    where = settings.session_store or settings.home / "notebook.db"
    if not is_stored(settings):
        return CheckResult("ok", "none yet")
    try:
        with closing(open_store(settings, parts.append)) as store:
            latest = store.sessions(limit=1)
    except HermesError as error:
        return CheckResult("problem", redact(str(error)))
    if parts:
        return CheckResult("note", " ".join(parts))
    return CheckResult("ok", f"{where}, last “{latest[0].title}”" if latest else f"{where}")


def settled() -> list[CheckResult]:
    """Report the settings fixed by an administrator's policy, if there is one."""
    found = policy()
    return [CheckResult("ok", found.summary)] if found else []


def labextension() -> CheckResult:
    """Report whether Jupyter servers in this environment have the labextension."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    folders = (Path(each) / EXTENSION for each in jupyter_path("labextensions"))
    here = next((each for each in folders if (each / "package.json").is_file()), None)
    if here is None:
        text = (
            "is not installed, so turns cannot edit an open notebook: install hermes_nb where the "
        )
        return CheckResult("note", text + "Jupyter server runs")
    package = _json(here / "package.json")
    entry = package.get("jupyterlab", {}).get("_build", {}).get("load", "")
    if not (here / str(entry).partition("?")[0]).is_file():  # a hash follows the `?`
        return CheckResult("problem", f"{here} is damaged; reinstall hermes_nb")
    if package.get("version") != hermes_nb.__version__:
        text = (
            f"{here} is of version {package.get('version')}; reinstall hermes_nb, reload the page"
        )
        return CheckResult("problem", text)
    for folder in jupyter_config_path():
        page = _json(Path(folder) / "labconfig" / "page_config.json")
        off = page.get("disabledExtensions")  # JupyterLab writes a list or an object
        if off.get(EXTENSION) if isinstance(off, dict) else EXTENSION in (off or []):
            text = f"is disabled in {folder}: `jupyter labextension enable {EXTENSION}`"
            return CheckResult("problem", text)
    return CheckResult("ok", f"{here}, for JupyterLab and Notebook 7")


def _json(file: Path) -> dict[str, Foreign]:
    """Return a JSON object, or {} if unreadable: Jupyter reports errors in these files."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def sandbox() -> CheckResult:
    """Report the sandbox for commands."""
    slow = "" if shutil.which("rg") else "; ripgrep is not installed, so searching is slower"
    return CheckResult("ok" if level().name != "none" else "note", f"{sandbox_told()}{slow}")


def sandbox_told() -> str:
    """Describe the sandbox for commands on this machine, and why it is not stricter."""
    found = level()
    why = f" ({found.why})" if found.why else ""
    if found.name == "none":
        return f"none{why}: only commands known to be read-only run without approval"
    return f"{found.name}{why}: other commands run without approval if they can only read"


def endpoints(settings: Settings, *, timeout: float = SECONDS) -> list[CheckResult]:
    """Report whether each server in the settings responds; skipped during a replay.

    Blocks for at most a few times `timeout` seconds per server.
    """
    if settings.cassette == "replay":
        return []
    named = [("answer", settings.endpoint), *settings.beside]
    if is_installed(settings.endpoint.model):  # it has no address
        named = named[1:]
    asked = [(name, end) for name, end in named if end.named]
    return [CheckResult(*request_models(end, timeout)[1:], name) for name, end in asked]


def request_models(end: Endpoint, timeout: float = SECONDS) -> tuple[Kind | None, State, str]:
    """Request a server's list of models; return the result's kind, state and text.

    The kind is None if the server was not asked.
    """
    address = end.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    key = end.api_key or ("" if end.base_url else os.environ.get("OPENAI_API_KEY", ""))
    shown = visible(redact(address))
    if not is_address(address):
        return None, "problem", f"{shown!r} is not a URL such as https://HOST/v1"
    if address == OPENAI and not key:
        return None, "problem", f"{shown} requires a key, and none is set; {KEYS}"
    if not (key.isascii() and key.isprintable()):
        text = f"the key contains characters that cannot be sent; copy it again, {KEYS}"
        return None, "problem", text
    found = reach(address, api_key=key, timeout=timeout, wire=end.wire or None)
    state, text = _means(found, end, shown, has_key=bool(key))
    return found.kind, state, redact(visible(text))


def _means(
    found: ServerResponse, end: Endpoint, address: str, *, has_key: bool
) -> tuple[State, str]:
    match found.kind:
        case "listed":
            return _listed(found.models, end.model, address, has_key=has_key)
        case "refused" if has_key:
            return "problem", f"{address}: {found.problem}; copy the key again, and {KEYS}"
        case "refused":
            return "problem", f"{address} requires a key, and none is set; {KEYS}"
        case "no leave":
            text = f"{address} responds, but does not let this key list models: {found.problem}"
            return "note", f"{text}; the first turn will show whether it can be used"
        case "no list":
            if _ends_well(address):
                text = "responds but lists no models, so the key and the model could not be checked"
                return "note", f"{address} {text}"
            return "problem", f"{address} is not the address of a model API; {_v1(address)}"
        case _:
            return "problem", f"{address}: {found.problem}; {_way_out(found, address)}"


def _listed(
    models: Sequence[str], wanted: str, address: str, *, has_key: bool
) -> tuple[State, str]:
    taken = "responds and accepts the key" if has_key else "responds"
    if not wanted or _served(wanted, models):
        has = f", and has {wanted}" if wanted else f", {len(models)} models"
        return "ok", f"{address} {taken}{has}"
    if not models:
        return "problem", f"{address} {taken}, but it serves no model: load one there"
    near = difflib.get_close_matches(wanted, models, n=NEAR, cutoff=0.5) or list(models[:NEAR])
    text = f"{address} {taken}, but {wanted} is not among its {len(models)} models"
    return "problem", f"{text}, such as {', '.join(near)}; set HERMES_NB_MODEL to one of them"


def _served(wanted: str, models: Sequence[str]) -> bool:
    """Return whether a model is listed, ignoring a folder prefix or tag suffix.

    `gemini-x` is listed as `models/gemini-x`, `llama3` as `llama3:latest`, `a/b:free` as `a/b`.
    """
    known = {form for name in models for form in (name, name.partition(":")[0])}
    known |= {name.removeprefix("models/") for name in known}
    return wanted in known or wanted.partition(":")[0] in models


def _ends_well(address: str) -> bool:
    last = address.rstrip("/").rpartition("/")[2]
    return last.startswith("v") and last[1:2].isdigit()


def _v1(address: str) -> str:
    return "is the address right?" if _ends_well(address) else f"try {address.rstrip('/')}/v1"


def _way_out(found: ServerResponse, address: str) -> str:
    if proxy := proxy_for(address):
        return f"requests go through the proxy {proxy} (HTTPS_PROXY, NO_PROXY)"
    if "certificate" in found.problem:
        return "if a proxy signs connections, set SSL_CERT_FILE to its certificates"
    if "web page" in found.problem or "no list" in found.problem:
        return _v1(address)
    if address in LOCAL_SERVERS.values():
        return "start it, or `%hermes model embedded`"
    return "`%hermes model embedded` needs neither server nor network"

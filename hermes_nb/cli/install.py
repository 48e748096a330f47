"""`jupyter hermes enable`, `disable` and `doctor`: use `%%hermes` without `%load_ext`.

IPython can load a magic when a cell calls it, which is too late for an async one. So a startup file
makes each kernel look for the magic before a cell is parsed (see `hermes_nb.notebook.lazy`); with
`--kernelspec`, an argument in the kernelspec does so instead. IPython runs the files in the
`startup` folders of the profile, the environment and the system. Earlier versions also declared the
magic in IPython's JSON configuration, which `disable` removes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.command import FAILED, OK
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import write_atomic
from hermes_nb.notebook.commands import doctor as checks
from hermes_nb.notebook.commands.doctor import CheckResult, run_checks
from hermes_nb.notebook.lazy import __name__ as WATCHER  # noqa: N812 - a module's name
from hermes_nb.notebook.shell import EXTENSION, MAGIC, Foreign
from hermes_nb.safety.redact import redact

Level = Literal["user", "sys-prefix", "system"]
LEVELS: tuple[Level, ...] = ("user", "sys-prefix", "system")
STARTUP = "00-hermes-nb.py"
"""Name of the startup file."""
MARK = "# Written by `jupyter hermes enable`; `jupyter hermes disable` removes it.\n"
"""First line of the startup file, by which `disable` recognises the file."""
STARTUP_TEXT = f"""{MARK}# The first cell with %hermes or %%hermes loads Hermes.
try:
    __import__("{WATCHER}", fromlist=["watch"]).watch(get_ipython())
except ImportError:
    pass  # it is not installed for this interpreter
"""
ARGUMENT = f"--ext={WATCHER}"
"""The argument in a kernelspec."""
CONFIGS = ("ipython_kernel_config.json", "ipython_config.json")
"""The files in which earlier versions declared the magic, for kernels and terminals."""
DECLARED = json.dumps({"MagicsManager": {"lazy_magics": {MAGIC: EXTENSION}}}, indent=2) + "\n"
"""Content of such a file if it did not exist before."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_ARGV = re.compile(rf'"argv"\s*:\s*\[(?:\s*{_STRING}\s*,)*(?P<blank>\s*){_STRING}')
_ASK = "import importlib.util as u, sys; sys.exit(u.find_spec('hermes_nb') is None)"
_PATIENCE = 60.0
"""Timeout for starting a kernel's interpreter, in seconds."""


@dataclass(frozen=True, slots=True)
class ConfigDirectory:
    """An IPython configuration directory."""

    directory: Path
    """Its path."""
    audience: str
    """The users to whom it applies, for messages."""

    @property
    def startup(self) -> Path:
        """The file that every kernel and terminal runs on startup."""
        return self.directory / "startup" / STARTUP


def place_for(level: Level | None) -> ConfigDirectory:
    """Return the directory for a level; None selects the level that Jupyter prefers here."""
    if level is None:
        from jupyter_core.paths import prefer_environment_over_user

        level = "sys-prefix" if prefer_environment_over_user() else "user"
    if level == "user":
        from IPython.paths import get_ipython_dir

        return ConfigDirectory(
            Path(get_ipython_dir()) / "profile_default", "your kernels and terminals"
        )
    if level == "sys-prefix":
        return ConfigDirectory(
            Path(sys.prefix) / "etc" / "ipython", f"the environment {sys.prefix}"
        )
    from IPython.core.application import SYSTEM_CONFIG_DIRS

    if not SYSTEM_CONFIG_DIRS:
        raise ConfigError("IPython has no directory for all users on this system; use --sys-prefix")
    return ConfigDirectory(Path(SYSTEM_CONFIG_DIRS[0]), "all users of this machine")


def enable(arguments: argparse.Namespace) -> int:
    """Enable the magic, and print the changes and who they apply to; idempotent."""
    if arguments.kernelspec:
        audience = f"kernels of {arguments.kernelspec!r}"
        file = _kernelspec(arguments.kernelspec)
        change = _write_or_remove(file, _with_argument(file, _read(file) or ""))
    else:
        place = place_for(arguments.level)
        audience, change = place.audience, _write_or_remove(place.startup, STARTUP_TEXT)
    print(f"%%hermes works without %load_ext for {audience}, in kernels that start from now on.")
    print(change)
    return OK


def disable(arguments: argparse.Namespace) -> int:
    """Undo `enable`, including changes made by earlier versions; print the changes."""
    if arguments.kernelspec:
        file = _kernelspec(arguments.kernelspec)
        argued = rf',\s*"{re.escape(ARGUMENT)}"'
        changes = [_write_or_remove(file, re.sub(argued, "", _read(file) or ""))]
    else:
        place = place_for(arguments.level)
        wanted = {}
        for file in (place.directory / name for name in CONFIGS):
            if EXTENSION in (text := _read(file) or ""):
                wanted[file] = _undeclared(file, text)
        startup = _read(place.startup)
        if startup is not None:
            wanted[place.startup] = "" if startup.startswith(MARK) else startup
        changes = [_write_or_remove(file, text) for file, text in wanted.items()]
        for directory in (place.startup.parent, place.directory):
            with suppress(OSError):  # not empty: still in use
                directory.rmdir()
    print(*changes if changes else ["There was nothing to undo."], sep="\n")
    return OK


def _kernelspec(name: str) -> Path:
    """Return the `kernel.json` of a kernelspec; raise `ConfigError` if it is not found."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except (NoSuchKernel, json.JSONDecodeError) as error:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise ConfigError(f"there is no usable kernelspec {name!r}; available: {known}") from error
    return Path(spec.resource_dir) / "kernel.json"


def _check_kernel(file: Path, spec: dict[str, Foreign]) -> None:
    """Raise `ConfigError` unless a kernelspec runs IPython in a Python with hermes_nb."""
    argv = [str(word) for word in spec.get("argv", [])]
    if not any(word in ("ipykernel_launcher", "ipykernel") for word in argv):
        raise ConfigError(f"{file} does not start IPython's kernel, so Hermes cannot run in it")
    python = sys.executable if argv[0] in ("python", "python3") else argv[0]
    try:
        done = subprocess.run([python, "-c", _ASK], timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{file} names an interpreter that does not start: {error}") from error
    if done.returncode:
        message = f"{python} has no hermes_nb: run `{python} -m pip install hermes_nb` first"
        raise ConfigError(message)


def _with_argument(file: Path, text: str) -> str:
    """Return a kernelspec's text with `ARGUMENT` added, formatted like its other arguments."""
    spec = _parsed(file, text)
    _check_kernel(file, spec)
    if ARGUMENT in spec["argv"]:
        return text
    wanted = {**spec, "argv": [*spec["argv"], ARGUMENT]}
    found = _ARGV.search(text)
    if found is not None:
        made = f'{text[: found.end()]},{found["blank"]}"{ARGUMENT}"{text[found.end() :]}'
        if _parsed(file, made) == wanted:
            return made
    return json.dumps(wanted, indent=1, ensure_ascii=False) + "\n"


def _undeclared(file: Path, text: str) -> str:
    """Return IPython's JSON without the magic that earlier versions declared in it.

    Objects that they created for it are also removed; other content is unchanged, byte for byte.
    Returns "" for a file that they created.
    """
    document = _parsed(file, text)
    group = document.get("MagicsManager")
    declared = group.get("lazy_magics") if isinstance(group, dict) else None
    if not isinstance(declared, dict) or declared.get(MAGIC) != EXTENSION:
        return text
    if text == DECLARED:
        return ""
    ours = f'"{MAGIC}": "{EXTENSION}"'
    group = {**document["MagicsManager"]}
    without = {name: value for name, value in declared.items() if name != MAGIC}
    less = {name: value for name, value in group.items() if name != "lazy_magics"}
    none = {name: value for name, value in document.items() if name != "MagicsManager"}
    least = {**document, "MagicsManager": {**group, "lazy_magics": without}}
    for added, left in (
        (f'"MagicsManager": {{"lazy_magics": {{{ours}}}}}', none),
        (f'"lazy_magics": {{{ours}}}', {**document, "MagicsManager": less}),
        (ours, least),
    ):
        exact = re.escape(added)
        for pattern in (rf",\s*{exact}", rf"{exact}\s*,\s*", f" ?{exact}"):
            made = re.sub(pattern, "", text, count=1)
            with suppress(ConfigError):
                if made != text and _parsed(file, made) == left:
                    return made
    return json.dumps(least, indent=2, ensure_ascii=False) + "\n"


def _parsed(file: Path, text: str) -> dict[str, Foreign]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"it is not valid JSON: {error.msg} in line {error.lineno}"
    except (ValueError, RecursionError) as error:  # huge numbers, deep nesting
        why = f"it cannot be read as JSON: {error}"
    else:
        if isinstance(document, dict):
            return document
        why = "its top level is not a JSON object"
    raise ConfigError(
        f"{file}: {why}. Nothing was changed; fix the file or move it away, then run this again"
    )


def _read(file: Path) -> str | None:
    """Return a file's text with its line endings, or None if it does not exist."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def _write_or_remove(file: Path, text: str) -> str:
    """Write a file if it differs, or remove it for ""; return a message about the change."""
    before = _read(file)
    if before == text:
        return f"unchanged: {file}"
    if not text:
        try:
            file.unlink()
        except OSError as error:
            raise ConfigError(f"cannot remove {file}: {error.strerror or error}") from error
        return f"removed: {file}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode("utf-8"))
    except OSError as error:
        why = error.strerror or error
        message = f"cannot write {file}: {why}; choose another location with --user or --sys-prefix"
        raise ConfigError(message) from error
    return f"{'written' if before is None else 'changed'}: {file}"


def doctor(arguments: argparse.Namespace) -> int:
    """Run the checks, print the results, and return 1 if any of them is a problem."""
    found = _findings(offline=arguments.offline)
    problems = [each for each in found if each.state == "problem"]
    if arguments.json:
        parts = [
            {"name": each.name, "state": each.state, "text": redact(each.text)} for each in found
        ]
        print(json.dumps({"ok": not problems, "checks": parts}, indent=2, ensure_ascii=False))
    else:
        width = max(len(each.name) for each in found)
        for each in found:
            print(f"{each.name:<{width}}  {visible(redact(each.marked))}")
    return FAILED if problems else OK


def _findings(*, offline: bool) -> list[CheckResult]:
    """Return the results of all checks; a broken configuration skips those that need it.

    With `offline`, servers are not asked whether they accept the key.
    """
    found = run_checks({"versions": checks.versions})
    try:
        settings = load_settings()
    except HermesError as error:
        found.append(CheckResult("problem", str(error), "settings"))
    else:
        text = "; ".join(f"{name}: {source}" for name, source in settings.sources.items())
        found.append(CheckResult("ok", text or "defaults", "settings"))
        found += run_checks(
            {
                "model": partial(checks.model, settings),
                "key": partial(checks.key, settings),
                "home": partial(checks.home, settings),
                "sessions": partial(checks.sessions, settings),
                **({} if offline else {"answer": partial(checks.endpoints, settings)}),
            }
        )
    return found + run_checks(
        {
            "policy": checks.settled,
            **checks.installed(),
            "labextension": checks.labextension,
            "kernel": _kernel,
            "without %load_ext": _enabled,
            "sandbox": checks.sandbox,
        }
    )


def _kernel() -> CheckResult:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        text = f"`{sys.executable} -m ipykernel install --sys-prefix`"
        return CheckResult("problem", f"there is no kernelspec python3: {text}")
    python = spec.argv[0] if spec.argv else ""
    if python in ("python", "python3", sys.executable):
        return CheckResult("ok", f"python3 ({spec.resource_dir})")
    return CheckResult(
        "note", f"python3 ({spec.resource_dir}) runs {python}, which needs hermes_nb too"
    )


def _enabled() -> CheckResult:
    here = [level for level in LEVELS if place_for(level).startup.is_file()]
    if here:
        return CheckResult("ok", f"%%hermes works immediately ({', '.join(here)})")
    text = (
        "notebooks begin with `%load_ext hermes_nb`; `jupyter hermes enable` makes this unnecessary"
    )
    return CheckResult("note", text)

"""`jupyter hermes enable` and `disable`: `%%hermes` without `%load_ext`, and the way back.

Two things are needed. `MagicsManager.lazy_magics` tells IPython who provides the magic. It loads
one as a cell calls it, which is too late for a magic that is awaited; so a startup file has each
kernel look for the magic before a cell is read (see `hermes_nb.notebook.lazy`). A kernelspec gets
that as an argument. What is in the files already stays, byte for byte.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_nb.cli.ending import OK
from hermes_nb.cli.jsontext import with_items, with_member, without_items, without_member
from hermes_nb.cli.places import Place, check_kernel, kernelspec_file, place_for
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import write_atomic
from hermes_nb.notebook.lazy import EXTENSION, MAGIC
from hermes_nb.notebook.lazy import __name__ as WATCHER  # noqa: N812 - a module's name

Done = Literal["written", "changed", "as it was", "removed", "left alone"]
CONFIGS = ("ipython_kernel_config", "ipython_config")
"""Of kernels, and of terminals."""
KEYS = ("MagicsManager", "lazy_magics", MAGIC)
STARTUP = "00-hermes-nb.py"
MARK = "# Written by `jupyter hermes enable`; `jupyter hermes disable` removes it.\n"
STARTUP_TEXT = f"""{MARK}# The first cell with %hermes or %%hermes loads Hermes.
try:
    __import__("{WATCHER}", fromlist=["watch"]).watch(get_ipython())
except ImportError:
    pass  # it is not installed for this interpreter
"""
FRESH = f"""{{
  "{KEYS[0]}": {{
    "{KEYS[1]}": {{
      "{KEYS[2]}": "{EXTENSION}"
    }}
  }}
}}
"""
"""A configuration file where there was none."""
ARGUMENTS = (f"--ext={WATCHER}",)
_DECLARED = re.compile(r"^[^#\n]*\blazy_magics\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Change:
    """A file, what became of it, and why if that says too little."""

    path: Path
    done: Done
    why: str = ""

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.done}: {self.path}" + (f" ({self.why})" if self.why else "")


def enable_command(arguments: argparse.Namespace) -> int:
    """Enable, and say what was changed and for whom."""
    if arguments.kernelspec:
        audience = f"kernels of {arguments.kernelspec!r}"
        changes = enable_kernelspec(arguments.kernelspec)
    else:
        place = place_for(arguments.level)
        audience, changes = place.audience, enable(place)
    print(f"%%hermes works without %load_ext for {audience}, in kernels that start from now on.")
    print(*changes, sep="\n")
    return OK


def disable_command(arguments: argparse.Namespace) -> int:
    """Take back what `enable` did, and say what was changed."""
    if arguments.kernelspec:
        changes = disable_kernelspec(arguments.kernelspec)
    else:
        changes = disable(place_for(arguments.level))
    print(*changes if changes else ["There was nothing to take back."], sep="\n")
    return OK


def enable(place: Place) -> list[Change]:
    """Have the kernels and terminals of a place know the magic; a second time changes nothing.

    Raises `ConfigError` for a file that is not as it should be, before any file is changed.
    """
    files = [place.directory / f"{name}.json" for name in CONFIGS]
    texts = {file: _enabled(file) for file in files}
    texts[place.startup / STARTUP] = STARTUP_TEXT
    changes = []
    for file, text in texts.items():
        if text is None:
            changes.append(Change(file, "left alone", f"{file.stem}.py sets lazy_magics"))
        else:
            changes.append(_put(file, text))
    return changes


def disable(place: Place) -> list[Change]:
    """Take back what `enable` did; the files are as they were, and those that it made are gone."""
    texts = {}
    for name in CONFIGS:
        file = place.directory / f"{name}.json"
        if (text := _read(file)) is not None:
            texts[file] = "" if text == FRESH else _edited(file, without_member, text)
    startup = place.startup / STARTUP
    if (text := _read(startup)) is not None:
        texts[startup] = "" if text.startswith(MARK) else text
    changes = [_put(file, text) if text else _remove(file) for file, text in texts.items()]
    for directory in (place.startup, place.directory):
        with suppress(OSError):  # what is not empty is in use
            directory.rmdir()
    return changes


def enable_kernelspec(name: str) -> list[Change]:
    """Have one kernelspec know the magic; raise `ConfigError` where that is no use."""
    file = kernelspec_file(name)
    check_kernel(file)
    return [_put(file, _argued(file, with_items))]


def disable_kernelspec(name: str) -> list[Change]:
    """Take back what `enable_kernelspec` did."""
    file = kernelspec_file(name)
    return [_put(file, _argued(file, without_items))]


def enabled(place: Place) -> bool:
    """Say whether kernels of a place know the magic."""
    return (place.startup / STARTUP).is_file()


def _enabled(file: Path) -> str | None:
    """Return what a configuration file should hold, None where it must not be touched.

    JSON goes before Python there: an entry in it would hide all that the Python file declares.
    """
    script = _read(file.with_suffix(".py"))
    if script is not None and _DECLARED.search(script):
        return None
    text = _read(file)
    return FRESH if text is None else _edited(file, with_member, text)


def _edited(file: Path, edit: Callable[[str, tuple[str, ...], str], str], text: str) -> str:
    try:
        return edit(text, KEYS, EXTENSION)
    except ConfigError as error:
        raise _unusable(file, error) from error


def _argued(file: Path, edit: Callable[[str, str, tuple[str, ...]], str]) -> str:
    try:
        return edit(_read(file) or "", "argv", ARGUMENTS)
    except ConfigError as error:
        raise _unusable(file, error) from error


def _unusable(file: Path, error: ConfigError) -> ConfigError:
    return ConfigError(
        f"{file}: {error}. Nothing was changed; mend the file or move it away, then run this again"
    )


def _read(file: Path) -> str | None:
    """Return a file's text with its line ends, None where there is none."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {file}: {error}"
        raise ConfigError(message) from error


def _put(file: Path, text: str) -> Change:
    before = _read(file)
    if before == text:
        return Change(file, "as it was")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode("utf-8"))
    except OSError as error:
        message = (
            f"cannot write {file}: {error.strerror or error}; --user and --sys-prefix say where"
        )
        raise ConfigError(message) from error
    return Change(file, "written" if before is None else "changed")


def _remove(file: Path) -> Change:
    try:
        file.unlink()
    except OSError as error:
        message = f"cannot remove {file}: {error.strerror or error}"
        raise ConfigError(message) from error
    return Change(file, "removed")

"""TAB completion in a prompt: references, and names of the user's variables.

Another thread may ask for completions while a cell runs. So this module only reads names and
folders, evaluates nothing, and imports little.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.variables import user_variables

ENTRIES = 200
"""Maximum number of folder entries to offer."""
KINDS = ("cell:", "error", "file:", "folder:", "diff", "staged", "git:", "url:")
"""The kinds of references, apart from MCP servers."""
Servers = Mapping[str, Sequence[str]]
"""MCP servers by name, each with the resources and prompts that a prompt can reference."""
_FENCED = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r"(?<![\w@./`])@([\w./~-]*(?::[^\s`\"]*)?)\Z")
_VALUE = re.compile(r"(?<!\$)\$`(?:[^`\n]*[^`\n\w.])?([^\W\d]\w*)?\Z")
_WORD = re.compile(r"(?<![\w@.+`-])([^\W\d][\w@+-]*)?\Z")


def bare(prompt: str) -> str:
    """Return a prompt of the same length with its fenced blocks blanked out."""
    return _FENCED.sub(lambda block: " " * len(block[0]), prompt)


def completed(
    prompt: str, shell: Shell, root: Path, servers: Servers
) -> tuple[str, list[str]] | None:
    """Return the text to complete at a prompt's end, and its completions; None for plain text.

    An unknown reference completes to itself, because other completers would treat it as Python.
    """
    if value := _VALUE.search(prompt):
        begun = value[1] or ""
        return begun, _variables(begun, shell)
    if reference := _REFERENCE.search(bare(prompt)):
        found = [*_references(reference[1], shell, root, servers)]
        return reference[0], found or [reference[0]]
    return None


def in_words(prompt: str, shell: Shell) -> tuple[str, list[str]] | None:
    """Complete a variable name in plain text; None if the prompt looks like code.

    An unknown word completes to itself.
    """
    word = _WORD.search(prompt)
    if word is None or bare(f"{prompt}x")[-1] == " ":
        return None
    begun = word[1] or ""
    found = _variables(begun, shell) or [begun]
    return (begun, found) if any(found) else None


def _variables(begun: str, shell: Shell) -> list[str]:
    variables = user_variables(shell.user_ns, shell.user_ns_hidden)
    return [name for name in variables if name.startswith(begun)]


def _references(typed: str, shell: Shell, root: Path, servers: Servers) -> Iterable[str]:
    """Return the completions of a partial reference without its `@`."""
    kind, colon, path = typed.partition(":")
    if not colon:
        known = [*_variables(typed, shell), *KINDS, *(f"{name}:" for name in servers)]
        return [f"@{name}" for name in known if name.startswith(typed)]
    if kind not in ("file", "folder"):
        found = (each for each in servers.get(kind, ()) if each.startswith(path))
        return [f"@{kind}:{each}" for each in found]
    folder, _, begins = path.rpartition("/")
    try:
        entries = sorted((root / folder).iterdir())
    except OSError:
        return []
    names = (
        f"{folder}{'/' if folder else ''}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(begins)
        and (begins or not entry.name.startswith("."))
        and (kind == "file" or entry.is_dir())
    )
    quoted = (f'"{name}"' if " " in name else name for name in names)
    return [f"@{kind}:{name}" for name in itertools.islice(quoted, ENTRIES)]

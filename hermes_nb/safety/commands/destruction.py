"""What no mode lets through: commands that destroy the system, a home, a disk, or end the machine.

Each rule looks at one simple command, its wrappers already off, and says what would be lost. It is
no judge of everything else: deleting a project is for the user to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hermes_nb.safety.commands.command_facts import (
    DELETERS,
    DESTROYS_STORAGE,
    DESTROYS_STORAGE_ALONE,
    ENDS_MACHINE,
    ENDS_MACHINE_VERBS,
    FORMATS,
    ONLY_LOOKS,
)
from hermes_nb.safety.commands.python_code import Effect
from hermes_nb.safety.commands.shell_script import Redirect
from hermes_nb.safety.commands.shell_words import Word
from hermes_nb.safety.commands.unwrap import tool_name
from hermes_nb.safety.commands.vital import absolute, is_disk, vital_file, vital_tree

Directory = str | None
_RESTRICTING = re.compile(
    r"-(i?name|i?path|i?wholename|i?regex|[acm]time|[acm]min|newer.*|size|empty|user|group|perm"
    r"|links|inum|uid|gid|nouser|nogroup|samefile|used)"
)


def destruction(words: Sequence[Word], directory: Directory) -> str:
    """Return what running this command would destroy; "" if it is nothing vital."""
    name = tool_name(words[0])
    texts = [word.text for word in words[1:]]
    if set(texts) & {"--help", "--version"} and len(texts) == 1:
        return ""
    if name in ENDS_MACHINE or set(texts) & ENDS_MACHINE_VERBS.get(name, frozenset()):
        return "it ends the machine"
    if FORMATS.fullmatch(name) or name in DESTROYS_STORAGE or name in DESTROYS_STORAGE_ALONE:
        return _storage(name, texts)
    rule = _RULES.get(name)
    if rule is None and name in DELETERS:
        rule = _delete
    return rule(texts, directory) if rule is not None else ""


def destruction_by_redirect(redirect: Redirect, directory: Directory) -> str:
    """Return what writing to a redirect's target would destroy."""
    if redirect.operator not in (">", ">>", ">|", "&>", "&>>", ">&", "<>"):
        return ""
    lost = vital_file(redirect.target.text, directory)
    appends = redirect.operator in (">>", "&>>") and "system file" in lost
    return f"it overwrites {lost}" if lost and not appends else ""


def destruction_by_python(effect: Effect, directory: Directory) -> str:
    """Return what an effect of Python code would destroy; commands in it are not looked at."""
    match effect.kind:
        case "delete_tree":
            return _deletes(vital_tree(effect.target, directory))
        case "delete_file":
            lost = vital_file(effect.target, directory) or vital_tree(effect.target, directory)
            return _deletes(lost)
        case "write":
            lost = vital_file(effect.target, directory)
            return f"it overwrites {lost}" if lost else ""
        case "kill":
            return "it kills every process" if effect.target in ("-1", "1") else ""
        case "fork_loop":
            return "it forks without end"
        case "shell":
            return ""


def _deletes(lost: str) -> str:
    return f"it deletes {lost}" if lost else ""


def _operands(texts: Iterable[str]) -> list[str]:
    """Return the arguments that are no options; behind `--` all are operands."""
    out: list[str] = []
    rest = iter(texts)
    for text in rest:
        if text == "--":
            return [*out, *rest]
        if not text.startswith("-") or text == "-":
            out.append(text)
    return out


def _has(texts: Iterable[str], letters: str, *words: str) -> bool:
    """Say whether an option is set, as a letter in a cluster or as a (shortened) word."""
    cluster = re.compile(rf"-[A-Za-z]*[{letters}]")
    return any(
        cluster.match(text) or any(len(text) > 3 and word.startswith(text) for word in words)  # noqa: PLR2004
        for text in texts
    )


def _first(lost: Iterable[str]) -> str:
    return next((each for each in lost if each), "")


def _delete(texts: list[str], directory: Directory) -> str:
    tree = _has(texts, "rR", "--recursive")
    paths = _operands(texts)
    if tree and (lost := _first(vital_tree(path, directory) for path in paths)):
        return _deletes(lost)
    return _deletes(_first(vital_file(path, directory) for path in paths))


def _move(texts: list[str], directory: Directory) -> str:
    *sources, target = _operands(texts) or [""]
    lost = _first(vital_tree(path, directory) or vital_file(path, directory) for path in sources)
    if lost:
        return f"it moves {lost} away"
    return _overwrites([target], directory)


def _copy(texts: list[str], directory: Directory) -> str:
    return _overwrites(_operands(texts)[-1:], directory)


def _overwrites(paths: Iterable[str], directory: Directory) -> str:
    lost = _first(vital_file(path, directory) for path in paths)
    return f"it overwrites {lost}" if lost else ""


def _tee(texts: list[str], directory: Directory) -> str:
    paths = _operands(texts)
    if _has(texts, "a", "--append"):
        paths = [path for path in paths if is_disk(absolute(path, directory) or "")]
    return _overwrites(paths, directory)


def _edit_in_place(texts: list[str], directory: Directory) -> str:
    return _overwrites(_operands(texts)[1:], directory) if _has(texts, "i", "--in-place") else ""


def _all_overwritten(texts: list[str], directory: Directory) -> str:
    return _overwrites(_operands(texts), directory)


def _dd(texts: list[str], directory: Directory) -> str:
    return _overwrites((text[3:] for text in texts if text.startswith("of=")), directory)


def _permissions(texts: list[str], directory: Directory) -> str:
    paths = _operands(texts)[1:]
    lost = _first(vital_tree(path, directory) for path in paths)
    if lost and (_has(texts, "R", "--recursive") or lost == "the whole file system"):
        return f"it changes the permissions of {lost}"
    return ""


def _sync(texts: list[str], directory: Directory) -> str:
    if not any(text.startswith("--del") for text in texts):
        return ""
    return _deletes(_first(vital_tree(path, directory) for path in _operands(texts)[-1:]))


def _find(texts: list[str], directory: Directory) -> str:
    """Judge `find ROOT... -delete`; what `-exec` runs is judged as a command of its own."""
    if "-delete" not in texts or is_restricted(texts):
        return ""
    return _deletes(_first(vital_tree(root, directory) for root in find_roots(texts)))


def find_roots(texts: Sequence[str]) -> list[str]:
    """Return where a `find` begins."""
    roots: list[str] = []
    for text in texts:
        if text in ("-H", "-L", "-P"):
            continue
        if text.startswith(("-", "(", "!")):
            break
        roots.append(text)
    return roots or ["."]


def is_restricted(texts: Sequence[str]) -> bool:
    """Say whether a `find` takes only some of what it finds."""
    if set(texts) & {"!", "-not", "-o", "-or", ","}:
        return False
    tests = [n for n, text in enumerate(texts) if _RESTRICTING.fullmatch(text)]
    return any(texts[n + 1 : n + 2] != ["*"] for n in tests)


def _kill(texts: list[str], _: Directory) -> str:
    targets = list(texts)
    if targets and targets[0] in ("-s", "--signal", "-n"):
        targets = targets[2:]
    elif len(targets) > 1 and re.fullmatch(r"-([A-Za-z]\w*|\d+)", targets[0]):
        targets = targets[1:]
    return "it kills every process" if set(targets) & {"-1", "1"} else ""


def _kill_by_name(texts: list[str], _: Directory) -> str:
    valued = ("-s", "--signal", "-g", "-G", "-P", "-t", "-u", "-U", "--user", "--euid", "--uid")
    names, skip = [], False
    for text in texts:
        if skip:
            skip = False
        elif text in valued:
            skip = True
        elif not text.startswith("-"):
            names.append(text)
    by_user = _has(texts, "uU", "--user", "--euid", "--uid")
    if any(name in (".", ".*", "", "^") for name in names) or (by_user and not names):
        return "it kills every process"
    return ""


def _storage(name: str, texts: list[str]) -> str:
    verbs = DESTROYS_STORAGE.get(name)
    if verbs is not None:
        return "it destroys what a disk holds" if verbs & set(texts) else ""
    if name in DESTROYS_STORAGE_ALONE:
        return "it destroys what a disk holds" if texts else ""
    if set(texts) & ONLY_LOOKS and name in ("fdisk", "sfdisk", "parted", "sgdisk", "wipefs"):
        return ""
    targets = [text for text in _operands(texts) if "/" in text]
    image = targets and not any(text.startswith("/dev/") for text in targets)
    return "" if image or not targets else f"it overwrites the disk {targets[0]}"


_RULES: dict[str, Callable[[list[str], Directory], str]] = {
    "chgrp": _permissions,
    "chmod": _permissions,
    "chown": _permissions,
    "cp": _copy,
    "dd": _dd,
    "find": _find,
    "install": _copy,
    "kill": _kill,
    "killall": _kill_by_name,
    "ln": _copy,
    "mv": _move,
    "pkill": _kill_by_name,
    "rsync": _sync,
    "sed": _edit_in_place,
    "tee": _tee,
    "truncate": _all_overwritten,
}

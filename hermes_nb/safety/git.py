"""Which git commands only read, and in which repositories they do.

A repository's own configuration can make git run a program in so many ways that overriding those
that are known was not enough. So git runs unasked only where `git config --local` holds nothing
but listed keys; an include or a configuration of a worktree is not one of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from hermes_nb.safety.environment import child_environment
from hermes_nb.safety.programs import (
    SYSTEM_PATH,
    NamesSecretError,
    known_commands,
    refuse,
)
from hermes_nb.safety.protected import known_names, secret_name


@dataclass(frozen=True, slots=True)
class GitPlan:
    """What git is told: all words, where, the repository, and the operands that may be files."""

    words: list[str]
    place: Path
    root: Path | None
    operands: list[str]


@dataclass(frozen=True, slots=True)
class _Verb:
    options: re.Pattern[str]
    added: tuple[str, ...] = ()
    lists: re.Pattern[str] | None = None
    """A verb that changes something when it has operands, unless this is found in its words, which
    NUL joins: an operand may look like an option."""


@cache
def _verbs() -> dict[str, _Verb]:
    return {
        name: _Verb(
            options=re.compile(re.sub(r"\s", "", verb["options"])),
            added=tuple(verb.get("added", ())),
            lists=re.compile(verb["lists"]) if "lists" in verb else None,
        )
        for names, verb in known_commands()["git"].items()
        for name in names.split()
    }


@cache
def _settings() -> re.Pattern[str]:
    """Return what a repository may set: nothing of it makes git run a program."""
    return re.compile(known_commands()["repository"]["settings"], re.VERBOSE)


_ALIKE = (".env*", "id_*", "*secret*", "*credential*")
_TABLE = known_names("secret")
_INSIDE = [f"{name}/**" for name in (*_TABLE.folders, *map("/".join, _TABLE.pairs))]
_NOT_SECRET = [
    f":(top,exclude,icase,glob)**/{name}"
    for name in (*_TABLE.files, *map("/".join, _TABLE.pairs), *_INSIDE, *_ALIKE)
]
_PATCH = re.compile(r"-[pucU]|--(patch|cc|unified|word-diff|color-words)")
_MOST_WORDS = 200
_ALL_NAMES = frozenset({"--all", "--branches", "--tags", "--remotes"})
_EMPTY_TREE = ("4b825dc642cb6eb9a060e54bf8d69288fbee4904",)


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    out = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        out |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return out


GIT_ENVIRONMENT = {
    "LD_LIBRARY_PATH": "",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    **_variables(
        {
            "safe.bareRepository": "explicit",
            "core.fsmonitor": "false",
            "core.hooksPath": "/dev/null",
            "submodule.recurse": "false",
            "diff.submodule": "short",
            "status.submoduleSummary": "false",
            "log.showSignature": "false",
        }
    ),
}
"""Harder than need be where only listed keys are set: nobody looks at the user's own settings."""


def git_plan(words: list[str], directory: Path, *, hidden_in: Path | None) -> GitPlan:
    """Return what git may be told; raise MayDoMoreError for what may change or run something.

    In a repository below `hidden_in` it runs where what the configuration names can do no harm.
    """
    place, rest = directory, list(words)
    while rest[:1] in (["-C"], ["--no-pager"]):
        if rest.pop(0) == "-C" and rest:
            place /= rest.pop(0)
    name, *rest = rest or [""]
    verb = _verbs().get(name)
    if len(rest) > _MOST_WORDS:
        refuse("git is told very much")
    if verb is None or not place.is_dir() or secret_name(place.parts):
        refuse(f"git {name} may change or run something")
    ends, operands = _checked(name, verb, rest)
    root = _root(place)
    if name in ("diff", "grep"):
        _in_repository(name, [place / word for word in operands], root)
    if hidden_in is None or root is None or not root.is_relative_to(hidden_in):
        _check_settings(place, root)
    if name == "show" and not _ALL_NAMES.isdisjoint(rest):
        refuse("git show shows whatever a name points at")
    if name in ("show", "cat-file", "diff", "grep"):
        _no_nameless(name, operands if root else [], place)
    words = ["-C", str(place), "--no-pager", name, *verb.added, *rest]
    return GitPlan([*words, *_exclusions(name, rest, ends)], place, root, operands)


def _checked(name: str, verb: _Verb, rest: list[str]) -> tuple[int, list[str]]:
    """Check options and operands; return where the options end, and the operands."""
    ends = rest.index("--") if "--" in rest else len(rest)
    for at, word in enumerate(rest):  # behind `--` too: it may be the value of an option
        odd = at > ends or not verb.options.fullmatch(word)
        if (word.startswith("-") and at != ends and odd) or "%G" in word or "%(sig" in word:
            refuse(f"git {name} {word} may change or run something")
        if re.search(r"%\(\*?raw", word):
            refuse(f"git {name} {word} may show the content of a file", NamesSecretError)
    operands = [word for word in rest[:ends] if not word.startswith("-")] + rest[ends + 1 :]
    if verb.lists and (operands or name == "stash") and not verb.lists.search("\0".join(rest)):
        refuse(f"git {name} without an argument that lists may change something")
    is_text = name == "grep" and not any(re.match(r"-\w*e", word) for word in rest)
    named = [*operands[is_text:], *(word for word in rest if word.startswith("-L"))]
    for word in named:
        if secret_name(PurePath(word.rpartition(":")[2]).parts):
            refuse(f"{word} may hold secrets", NamesSecretError)
    return ends, operands


def _exclusions(name: str, rest: list[str], ends: int) -> list[str]:
    """Return the words that keep secret files out of patches."""
    patch = name in ("diff", "show", "grep") or (name == "stash" and rest[:1] == ["show"])
    patch = patch or (name in ("log", "stash") and any(map(_PATCH.match, rest[:ends])))
    follows = any(word.startswith(("-L", "--follow")) for word in rest)
    if name != "blame" and follows and (patch or "--follow" not in rest):
        refuse(f"git {name} follows a file back to when it had another name")
    if not patch:
        return []
    behind = [*(["--"] if ends == len(rest) else []), *([":/"] if not rest[ends + 1 :] else [])]
    return [*behind, *_NOT_SECRET]


def _in_repository(name: str, paths: list[Path], root: Path | None) -> None:
    """Refuse what git would read like any file, since the repository does not hold it."""
    if root is None and (name == "grep" or any(path.exists() for path in paths)):
        refuse(f"git {name} outside of a repository reads any file")
    for path in paths:
        if root and path.exists() and not path.resolve().is_relative_to(root):
            refuse(f"{path.name} lies outside of the repository")


def _root(place: Path) -> Path | None:
    real = place.resolve()
    for each in (real, *real.parents):
        if (each / ".git").exists():
            return each
        if (each / "HEAD").exists() and (each / "objects").exists():
            refuse("it is in a bare repository, which may set what git runs")
    return None


def _no_nameless(name: str, operands: list[str], place: Path) -> None:
    """Refuse the content of a file that is named by a hash, a tag or the hash of a folder."""
    parts = [part for word in operands for part in re.split(r"\.\.\.?", word.lstrip("^"))]
    parts = [part for part in parts if part and not part.startswith(_EMPTY_TREE)]
    holders = [part.partition(":")[0] for part in parts]
    asked = [part if ":" in part else f"{part}^{{}}" for part in parts]
    asked += [f"{holder}^{{}}" for holder in holders]
    if any("\n" in each for each in asked):
        refuse("git is told several lines in one word")
    told = _git(place, "cat-file", "--batch-check=%(objecttype)", given="\n".join(asked))
    kinds = (told or b"").decode(errors="replace").split("\n")[:-1]
    if asked and len(kinds) != len(asked):
        refuse("git does not tell what it would show")
    for part, holder, kind, held in zip(
        parts, holders, kinds[: len(parts)], kinds[len(parts) :], strict=True
    ):
        named = ":" in part and (not holder or held == "commit")
        if not named and (kind == "blob" or (kind == "tree" and name in ("diff", "grep"))):
            refuse(
                f"{part} may be the content of a file, whose name is not known", NamesSecretError
            )


def _check_settings(place: Path, root: Path | None) -> None:
    listed = _git(place, "config", "--null", "--name-only", "--list", "--local")
    if listed is None and root is not None:
        refuse("git does not tell what this repository sets")
    names = (listed or b"").decode(errors="surrogateescape").split("\0")
    if key := next((name for name in names if name and not _settings().fullmatch(name)), ""):
        refuse(f"the repository sets {key}, which may run something")


def _git(place: Path, *words: str, given: str = "") -> bytes | None:
    """Return what git prints, None if it fails; it finds the repository just as it will later."""
    program = shutil.which("git", path=SYSTEM_PATH) or "/usr/bin/git"
    environment = {**child_environment(), "PATH": SYSTEM_PATH, **GIT_ENVIRONMENT}
    done = subprocess.run(  # noqa: S603 - no shell, and nothing of it runs a program
        [program, *words],
        cwd=place,
        env=environment,
        input=given.encode(errors="surrogateescape"),
        capture_output=True,
        timeout=0.2,
        check=False,
    )
    return None if done.returncode else done.stdout

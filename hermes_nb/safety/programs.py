"""Check the arguments of the read-only programs in `commands.toml`, including git.

A repository's configuration can make git run programs in too many ways to override them all. Git
therefore runs without approval only if `git config --local` lists nothing but known keys. Includes
and worktree configurations are not among them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePath
from typing import NoReturn

from hermes_nb.safety import table
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.protected import known_names, secret_name

SYSTEM_PATH = ":".join(("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
"""Where to search for system programs."""
_OPTIONS_FROM_FILES = frozenset("strings nm readelf size objdump".split())
"""Programs that accept `@FILE` as an argument and read options from that file."""


class MayDoMoreError(Exception):
    """A command may do more than read. The message states the reason."""


class NamesSecretError(MayDoMoreError):
    """A command would show the secret named in the message. A sandbox might not hide it."""


def refuse(why: str, error: type[MayDoMoreError] = MayDoMoreError) -> NoReturn:
    """Raise an error with the reason why a command is not known to be read-only."""
    raise error(why)


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """A command's arguments, sorted by kind."""

    operands: list[str]
    """Arguments that are not options."""
    options: set[str]
    """Names of the options."""
    values: list[str]
    """Values of the options."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A program's permitted arguments."""

    short: str
    """Letters of the options without a value. `*`: all arguments are operands."""
    valued: str
    """Letters of the options with a value."""
    long: frozenset[str]
    """Names of the long options. Those with a value end with `=`."""
    operands: str
    """Kind of operands: files, names, pattern, text, plus (`+…`), one or none."""

    def read(self, name: str, words: list[str]) -> ParsedArguments:
        """Sort the arguments. Raise MayDoMoreError for an option that is not permitted."""
        if self.short == "*":
            return ParsedArguments(words, set(), [])
        if name in _OPTIONS_FROM_FILES and any(word.startswith("@") for word in words):
            refuse(f"{name} may take its options from a file")
        out, rest = ParsedArguments([], set(), []), list(reversed(words))
        while rest:
            word = rest.pop()
            if word == "--":
                if any(each.startswith("-") for each in rest):
                    refuse(f"{name} may interpret {word!r} differently")
                out.operands.extend(reversed(rest))
                break
            if not word.startswith("-") or word == "-":
                out.operands.append(word)
            elif word.startswith("--"):
                self._long(name, word, out, rest)
            else:
                self._cluster(name, word, out, rest)
        return out

    def _long(self, name: str, word: str, out: ParsedArguments, rest: list[str]) -> None:
        option, equals, value = word[2:].partition("=")
        out.options.add(option)
        if option in self.long and not equals:
            return
        if f"{option}=" not in self.long or not (equals or rest):
            refuse(f"{name} with {word!r} may do more than read")
        out.values.append(value if equals else rest.pop())
        if name == "jq" and option in ("arg", "argjson") and rest:
            out.values.append(rest.pop())

    def _cluster(self, name: str, word: str, out: ParsedArguments, rest: list[str]) -> None:
        for at, letter in enumerate(word[1:], 1):
            out.options.add(letter)
            if letter in self.valued:
                if at + 1 < len(word):
                    out.values.append(word[at + 1 :])
                elif rest:
                    out.values.append(rest.pop())
                return
            if letter not in self.short:
                refuse(f"{name} with {word!r} may do more than read")


@cache
def readers() -> dict[str, Rule]:
    """Return the read-only programs with their permitted arguments."""
    return {
        name: Rule(
            short=rule.get("short", ""),
            valued=rule.get("valued", ""),
            long=frozenset(rule.get("long", "").split()),
            operands=rule.get("operands", "files"),
        )
        for names, rule in table("commands")["reads"].items()
        for name in names.split()
    }


@cache
def versioned() -> frozenset[str]:
    """Return the programs that may be called to print their version."""
    return frozenset(table("commands")["version"]["programs"].split())


_PS_WITH_E = {*"eAfFlLHjyMZwo", *"sort no-headers format forest headers columns cols".split()}
"""Options that make `-e` select processes in `ps`."""


def ps(words: list[str]) -> None:
    """Check the arguments of `ps`, which also accepts options without a dash."""
    rest = words[1:] if words and re.fullmatch(r"[auxfwjlrT]+", words[0]) else words
    read = readers()["ps"].read("ps", rest)
    shows = any("environ" in value for value in read.values)
    # procps reparses unknown options as BSD options, where `e` shows the environment.
    shows = shows or ("e" in read.options and not read.options <= _PS_WITH_E)
    if shows or not all(word.isdecimal() for word in read.operands):
        refuse("ps may show the environment of a process")


def archive(name: str, words: list[str]) -> list[str]:
    """Return the archives that `tar` or `unzip` would list. Refuse all other uses."""
    lists = r"-[lvZ]|-Z1" if name == "unzip" else r"-?(t[vzjJ]*f|[vzjJ]*tf)"
    match words:
        case [option, file] if re.fullmatch(lists, option) and not re.search("^-|:", file):
            return [file]
    refuse(f"{name} may write files")


def find(words: list[str]) -> list[str]:
    """Return a `find` command's starting folders. Refuse options that may do more than list."""
    out, rest = [], iter(words)
    valued, plain = (table("commands")["find"][kind].split() for kind in ("valued", "plain"))
    for word in rest:
        if word in valued:
            next(rest, None)
        elif word.startswith("-") and word not in plain:
            refuse(f"find {word} may change or run something")
        elif not word.startswith(("-", "(", ")", "!", ",")):
            out.append(word)
    return out or ["."]


_AWK_BITES = re.compile(r"@|getline|system|close|fflush|ARG|ENVIRON|PROCINFO|SYMTAB|FUNCTAB|\\\n")
_JQ_BITES = re.compile(r"\b(import|include|input_filename|modulemeta|get_search_list)\b")
_SED_PRINTS = re.compile(r"(\d{1,9}|\$)(,(\d{1,9}|\$|\+\d{1,9}))?[pdq=]")


def awk(words: list[str]) -> list[str]:
    """Return an awk program's files. Refuse words that can write, run or open something.

    Output to a file or a command is only possible after a `print`.
    """
    program, *files = readers()["awk"].read("awk", words).operands or ["@"]
    _, _, printed = program.replace("||", "").partition("print")
    writes = ">" in printed or "|" in printed
    if writes or _AWK_BITES.search(program) or any(re.search("^/inet|=", file) for file in files):
        refuse("this awk program may write, run or read something else")
    return files


def jq(words: list[str]) -> list[str]:
    """Return a jq program's files. Refuse programs that could load others."""
    read = readers()["jq"].read("jq", words)
    if not read.operands or _JQ_BITES.search(read.operands[0]):
        refuse("this jq program may read other files")
    return read.operands[1:]


def sed(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return a `sed` command's files, whether it only prints lines, and its other arguments.

    The effect of other scripts is unknown. The caller tests them with `sed --sandbox`.
    """
    read = readers()["sed"].read("sed", words)
    apart = bool(read.options & {"e", "expression"})
    files = read.operands[not apart :]
    scripts = read.values if apart else read.operands[:1]
    parts = [word for word in words if word not in files]
    plain = all(_SED_PRINTS.fullmatch(part) for text in scripts for part in text.split(";"))
    return files, plain and bool(scripts), parts


def which(words: list[str]) -> list[str]:
    """Return the arguments of `which` and similar programs: plain names."""
    if any(not re.fullmatch(r"-[atpP]|[\w.+][\w.+-]*", word) for word in words):
        refuse("it looks up something other than a plain name")
    return [word for word in words if word not in ("-t", "-p", "-P")]


def pip(words: list[str]) -> list[str]:
    """Return Python's arguments for running a read-only `pip` command."""
    plain = re.compile(r"[\w.][\w.\[\]-]*|-v|--(not-required|format=\w+|verbose|files)")
    told = words in (["--version"], ["--help"])
    reads = words[:1] in (["list"], ["freeze"], ["show"], ["check"])
    if not told and not (reads and all(plain.fullmatch(word) for word in words)):
        refuse("pip may install something")
    return ["-P", "-m", "pip", "--disable-pip-version-check", *words]


def python(words: list[str]) -> list[str]:
    """Return Python's arguments: the version option, or a read-only `pip` command."""
    if words != ["-V"] and words[:2] != ["-m", "pip"]:
        refuse("it runs Python")
    return words if words == ["-V"] else pip(words[2:])


SHOWS: dict[str, Callable[[list[str]], list[str]]] = {
    **dict.fromkeys(("awk", "gawk", "mawk"), awk),
    "jq": jq,
    "tar": partial(archive, "tar"),
    "unzip": partial(archive, "unzip"),
}
"""Programs with their own language or syntax, and functions that return the files they show."""
_KEYWORDS = frozenset("if then for while until case do done fi esac function select ! time".split())
"""Shell keywords."""


def unknown(name: str) -> NoReturn:
    """Refuse an unknown program."""
    if name in _KEYWORDS:
        refuse("it is a shell script")
    if "=" in name:
        refuse(f"it sets {name.partition('=')[0]}")
    refuse(f"Hermes does not know what {name!r} does; it may change something")


_ALIKE = {
    **dict.fromkeys(("type", "whereis", "command"), "which"),
    **dict.fromkeys(("pip3", "pip"), "pip"),
    **dict.fromkeys(("python3", "python"), "python"),
}


def found(word: str, workspace: Path) -> tuple[str, str]:
    """Return the path and plain name of a program from the system or this Python environment.

    A program that is found only through the user's PATH is refused. A missing program is allowed,
    because it cannot run.
    """
    if "/" in word and not word.startswith(("/bin/", "/usr/bin/", "/usr/local/bin/")):
        refuse(f"it runs the program {word!r}")
    name = os.path.basename(word)
    name = _ALIKE.get(name, name)
    if name in ("pip", "python"):
        return sys.executable, name
    own = str(Path(sys.executable).parent)
    path = (
        SYSTEM_PATH
        if Path(os.path.realpath(own)).is_relative_to(workspace)
        else f"{SYSTEM_PATH}:{own}"
    )
    there = shutil.which(name, path=path)
    if there is None and (elsewhere := shutil.which(name)):
        refuse(f"it runs {elsewhere}, which is not a system program")
    return there or f"/usr/bin/{name}", {"egrep": "grep", "fgrep": "grep"}.get(name, name)


@dataclass(frozen=True, slots=True)
class GitPlan:
    """Git's checked arguments."""

    words: list[str]
    """All arguments."""
    place: Path
    """The directory in which git runs."""
    root: Path | None
    """The root of the repository. None outside a repository."""
    operands: list[str]
    """Operands that may be files."""


@dataclass(frozen=True, slots=True)
class _Verb:
    """A git command's permitted arguments."""

    options: re.Pattern[str]
    """Matches a permitted option."""
    added: tuple[str, ...] = ()
    """Arguments to add."""
    lists: re.Pattern[str] | None = None
    """Matches an option that makes the command list something. Required if the command would
    otherwise change something when it has operands. All words are searched at once, joined by NUL,
    because an operand may look like an option."""


@cache
def _verbs() -> dict[str, _Verb]:
    return {
        name: _Verb(
            options=re.compile(re.sub(r"\s", "", verb["options"])),
            added=tuple(verb.get("added", ())),
            lists=re.compile(verb["lists"]) if "lists" in verb else None,
        )
        for names, verb in table("commands")["git"].items()
        for name in names.split()
    }


_LIKE_SECRETS = (".env*", "id_*", "*secret*", "*credential*")
_TABLE = known_names("secret")
_INSIDE = [f"{name}/**" for name in (*_TABLE.folders, *map("/".join, _TABLE.pairs))]
_NOT_SECRET = [
    f":(top,exclude,icase,glob)**/{name}"
    for name in (*_TABLE.files, *map("/".join, _TABLE.pairs), *_INSIDE, *_LIKE_SECRETS)
]
_PATCH = re.compile(r"-[pucU]|--(patch|cc|unified|word-diff|color-words)")
_MOST_WORDS = 200
_ALL_NAMES = frozenset({"--all", "--branches", "--tags", "--remotes"})
"""Options that select all refs."""
_EMPTY_TREE = ("4b825dc642cb6eb9a060e54bf8d69288fbee4904",)
"""Hash of the empty tree."""


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
"""Stricter than the known keys require, because the user's own settings are not checked."""


def git_plan(words: list[str], directory: Path, *, hidden_in: Path | None) -> GitPlan:
    """Return git's checked arguments. Raise MayDoMoreError if they may do more than read.

    The configuration of a repository under `hidden_in` is not checked, because git runs in a
    sandbox there.
    """
    place, rest = directory, list(words)
    while rest[:1] in (["-C"], ["--no-pager"]):
        if rest.pop(0) == "-C" and rest:
            place /= rest.pop(0)
    name, *rest = rest or [""]
    verb = _verbs().get(name)
    if len(rest) > _MOST_WORDS:
        refuse("the git command has too many arguments to check")
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
    """Check options and operands. Return the index after the options, and the operands."""
    ends = rest.index("--") if "--" in rest else len(rest)
    for at, word in enumerate(rest):  # after `--` too: it may be an option's value
        odd = at > ends or not verb.options.fullmatch(word)
        if (word.startswith("-") and at != ends and odd) or "%G" in word or "%(sig" in word:
            refuse(f"git {name} {word} may change or run something")
        if re.search(r"%\(\*?raw", word):
            refuse(f"git {name} {word} may show the content of a file", NamesSecretError)
    operands = [word for word in rest[:ends] if not word.startswith("-")] + rest[ends + 1 :]
    if verb.lists and (operands or name == "stash") and not verb.lists.search("\0".join(rest)):
        refuse(f"git {name} without an option that lists may change something")
    is_text = name == "grep" and not any(re.match(r"-\w*e", word) for word in rest)
    named = [*operands[is_text:], *(word for word in rest if word.startswith("-L"))]
    for word in named:
        if secret_name(PurePath(word.rpartition(":")[2]).parts):
            refuse(f"{word} may contain secrets", NamesSecretError)
    return ends, operands


def _exclusions(name: str, rest: list[str], ends: int) -> list[str]:
    """Return arguments that exclude secret files from patches."""
    patch = name in ("diff", "show", "grep") or (name == "stash" and rest[:1] == ["show"])
    patch = patch or (name in ("log", "stash") and any(map(_PATCH.match, rest[:ends])))
    follows = any(word.startswith(("-L", "--follow")) for word in rest)
    if name != "blame" and follows and (patch or "--follow" not in rest):
        refuse(f"git {name} follows a file to its earlier names")
    if not patch:
        return []
    behind = [*(["--"] if ends == len(rest) else []), *([":/"] if not rest[ends + 1 :] else [])]
    return [*behind, *_NOT_SECRET]


def _in_repository(name: str, paths: list[Path], root: Path | None) -> None:
    """Refuse paths outside the repository, which git would read like any file."""
    if root is None and (name == "grep" or any(path.exists() for path in paths)):
        refuse(f"git {name} can read any file when it runs outside a repository")
    for path in paths:
        if root and path.exists() and not path.resolve().is_relative_to(root):
            refuse(f"{path.name} is outside the repository")


def _root(place: Path) -> Path | None:
    real = place.resolve()
    for each in (real, *real.parents):
        if (each / ".git").exists():
            return each
        if (each / "HEAD").exists() and (each / "objects").exists():
            refuse("it is in a bare repository, which may set what git runs")
    return None


def _no_nameless(name: str, operands: list[str], place: Path) -> None:
    """Refuse operands that select file contents by the hash of a blob, tag or tree.

    The file names are then unknown, so secrets would not be recognised.
    """
    parts = [part for word in operands for part in re.split(r"\.\.\.?", word.lstrip("^"))]
    parts = [part for part in parts if part and not part.startswith(_EMPTY_TREE)]
    holders = [part.partition(":")[0] for part in parts]
    asked = [part if ":" in part else f"{part}^{{}}" for part in parts]
    asked += [f"{holder}^{{}}" for holder in holders]
    if any("\n" in each for each in asked):
        refuse("a git argument contains line breaks")
    told = _git(place, "cat-file", "--batch-check=%(objecttype)", given="\n".join(asked))
    kinds = (told or b"").decode(errors="replace").split("\n")[:-1]
    if asked and len(kinds) != len(asked):
        refuse("git did not report what it would show")
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
        refuse("git did not report this repository's settings")
    names = (listed or b"").decode(errors="surrogateescape").split("\0")
    harmless = re.compile(table("commands")["repository"]["settings"], re.VERBOSE).fullmatch
    if key := next((name for name in names if name and not harmless(name)), ""):
        refuse(f"the repository sets {key}, which may run something")


def _git(place: Path, *words: str, given: str = "") -> bytes | None:
    """Return git's output, or None if it fails. Uses the same repository as the checked command."""
    program = shutil.which("git", path=SYSTEM_PATH) or "/usr/bin/git"
    environment = {**child_environment(), "PATH": SYSTEM_PATH, **GIT_ENVIRONMENT}
    done = subprocess.run(
        [program, *words],
        cwd=place,
        env=environment,
        input=given.encode(errors="surrogateescape"),
        capture_output=True,
        timeout=0.2,
        check=False,
    )
    return None if done.returncode else done.stdout

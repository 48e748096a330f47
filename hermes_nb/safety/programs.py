"""The programs that `commands.toml` knows, and what may be told to those that only read."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn

SYSTEM_PATH = ":".join(("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
_OPTIONS_FROM_FILES = frozenset("strings nm readelf size objdump".split())
"""`@FILE` stands for the options in it."""


class MayDoMoreError(Exception):
    """A command may do more than read; the text says what."""


class NamesSecretError(MayDoMoreError):
    """A command would show a secret; the text says which. No sandbox can know it by its name."""


def refuse(why: str, error: type[MayDoMoreError] = MayDoMoreError) -> NoReturn:
    """Raise what says why a command is not known to only read."""
    raise error(why)


@dataclass(frozen=True, slots=True)
class Read:
    """The words of a command sorted: operands, names of options, values of options."""

    operands: list[str]
    options: set[str]
    values: list[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a program may be told. `anything`: all of its words are operands."""

    short: str
    valued: str
    long: frozenset[str]
    operands: str

    def read(self, name: str, words: list[str]) -> Read:
        """Sort words; raise MayDoMoreError for an option that is not listed."""
        if self.short == "*":
            return Read(words, set(), [])
        if name in _OPTIONS_FROM_FILES and any(word.startswith("@") for word in words):
            refuse(f"{name} may take its options from a file")
        out, rest = Read([], set(), []), list(reversed(words))
        while rest:
            word = rest.pop()
            if word == "--":
                if any(each.startswith("-") for each in rest):
                    refuse(f"{name} may take {word!r} for something else")
                out.operands.extend(reversed(rest))
                break
            if not word.startswith("-") or word == "-":
                out.operands.append(word)
            elif word.startswith("--"):
                self._long(name, word, out, rest)
            else:
                self._cluster(name, word, out, rest)
        return out

    def _long(self, name: str, word: str, out: Read, rest: list[str]) -> None:
        option, equals, value = word[2:].partition("=")
        out.options.add(option)
        if option in self.long and not equals:
            return
        if f"{option}=" not in self.long or not (equals or rest):
            refuse(f"{name} with {word!r} may do more than read")
        out.values.append(value if equals else rest.pop())
        if name == "jq" and option in ("arg", "argjson") and rest:
            out.values.append(rest.pop())

    def _cluster(self, name: str, word: str, out: Read, rest: list[str]) -> None:
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
def known_commands() -> dict[str, Any]:
    """Return what `commands.toml` says, by section."""
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


@cache
def readers() -> dict[str, Rule]:
    """Return the programs that only read, with what each may be told."""
    return {
        name: Rule(
            short=rule.get("short", ""),
            valued=rule.get("valued", ""),
            long=frozenset(rule.get("long", "").split()),
            operands=rule.get("operands", "files"),
        )
        for names, rule in known_commands()["reads"].items()
        for name in names.split()
    }


@cache
def versioned() -> frozenset[str]:
    """Return the programs that may be asked for their version."""
    return frozenset(known_commands()["version"]["programs"].split())


_PS_WITH_E = {*"eAfFlLHjyMZwo", *"sort no-headers format forest headers columns cols".split()}


def ps(words: list[str]) -> None:
    """Check the words of `ps`, which also takes options without a dash."""
    rest = words[1:] if words and re.fullmatch(r"[auxfwjlrT]+", words[0]) else words
    read = readers()["ps"].read("ps", rest)
    shows = any("environ" in value for value in read.values)
    # What procps does not understand it reads anew as BSD options, where `e` is the environment.
    shows = shows or ("e" in read.options and not read.options <= _PS_WITH_E)
    if shows or not all(word.isdecimal() for word in read.operands):
        refuse("ps may show the environment of a process")


def archive(name: str, words: list[str]) -> list[str]:
    """Return the archives that `tar` or `unzip` list; both write in most other ways."""
    lists = r"-[lvZ]|-Z1" if name == "unzip" else r"-?(t[vzjJ]*f|[vzjJ]*tf)"
    match words:
        case [option, file] if re.fullmatch(lists, option) and not re.search("^-|:", file):
            return [file]
    refuse(f"{name} may write files")


def find(words: list[str]) -> list[str]:
    """Return where a `find` begins."""
    out, rest = [], iter(words)
    valued, plain = (known_commands()["find"][kind].split() for kind in ("valued", "plain"))
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


def awk(words: list[str]) -> Read:
    """Check a program of awk by the words that could write, run or open something.

    Whoever writes to a file or a command does so behind a `print`.
    """
    read = readers()["awk"].read("awk", words)
    program, *files = read.operands or ["@"]
    _, _, printed = program.replace("||", "").partition("print")
    writes = ">" in printed or "|" in printed
    if writes or _AWK_BITES.search(program) or any(re.search("^/inet|=", file) for file in files):
        refuse("this awk program may write, run or read something else")
    return Read(files, read.options, read.values)


def jq(words: list[str]) -> Read:
    """Check a program of jq, which could load others."""
    read = readers()["jq"].read("jq", words)
    if not read.operands or _JQ_BITES.search(read.operands[0]):
        refuse("this jq program may read other files")
    return Read(read.operands[1:], read.options, read.values)


def sed(words: list[str]) -> tuple[list[str], Literal["prints", "script"], list[str]]:
    """Return the files of a `sed`, whether it does more than print lines, and all else it is told.

    What a script does only sed itself knows: it is asked with `--sandbox`.
    """
    read = readers()["sed"].read("sed", words)
    apart = bool(read.options & {"e", "expression"})
    files = read.operands[not apart :]
    scripts = read.values if apart else read.operands[:1]
    told = [word for word in words if word not in files]
    plain = all(_SED_PRINTS.fullmatch(part) for text in scripts for part in text.split(";"))
    return files, "prints" if plain and scripts else "script", told


def which(words: list[str]) -> list[str]:
    """Return what `which` and its like are told: plain names."""
    if any(not re.fullmatch(r"-[atpP]|[\w.+][\w.+-]*", word) for word in words):
        refuse("it looks up no plain name")
    return [word for word in words if word not in ("-t", "-p", "-P")]


def pip(words: list[str]) -> list[str]:
    """Return what Python is told to run a `pip` that only reads."""
    plain = re.compile(r"[\w.][\w.\[\]-]*|-v|--(not-required|format=\w+|verbose|files)")
    told = words in (["--version"], ["--help"])
    reads = words[:1] in (["list"], ["freeze"], ["show"], ["check"])
    if not told and not (reads and all(plain.fullmatch(word) for word in words)):
        refuse("pip may install something")
    return ["-P", "-m", "pip", "--disable-pip-version-check", *words]


_KEYWORDS = frozenset("if then for while until case do done fi esac function select ! time".split())


def unknown(name: str) -> NoReturn:
    """Refuse a program that is not listed."""
    if name in _KEYWORDS:
        refuse("it is a script of the shell")
    if "=" in name:
        refuse(f"it sets {name.partition('=')[0]}")
    refuse(f"Hermes does not know what {name!r} does; it may change something")


_ALIKE = {
    **dict.fromkeys(("type", "whereis", "command"), "which"),
    **dict.fromkeys(("pip3", "pip"), "pip"),
    **dict.fromkeys(("python3", "python"), "python"),
}


def found(word: str, workspace: Path) -> tuple[str, str]:
    """Return the path and the plain name of a program that only the system or this Python has.

    One that only the user's PATH has is not known; one that is nowhere may run: it cannot.
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
        refuse(f"it runs {elsewhere}, which is no program of the system")
    return there or f"/usr/bin/{name}", {"egrep": "grep", "fgrep": "grep"}.get(name, name)

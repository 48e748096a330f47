"""Parse shell commands: precisely if they can run without a shell, approximately otherwise.

`parse` accepts words, quotes without expansion, globs, pipes, `&&`, `||`, `;`, `< file`, and output
that is discarded or joined. If the command contains any other character that is special to a shell,
it is refused. `rough_commands` accepts any text in linear time and evaluates nothing. `destroys`
finds commands that would wipe the system, a home directory or a disk named explicitly; these are
denied in every mode. A computed target is unknown, so the command needs approval like any other.
The user may delete a project.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from posixpath import basename, join, normpath
from typing import Literal, NoReturn

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n|(?<![^\s;&|])\#[^\n]*)
    | (?<![^\s;&|])(?P<quiet>(?:[12]?>|&>)[ ]?/dev/null(?![^\s;&|])|2>&1|1?>&2)
    | (?P<operator>&&|\|\||\|&|\||;(?!;)|\n)
    | (?P<input><(?![<(&>]))
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\$`]|\\[\s\S]|\$(?=["\s|)/\\.,:%]))*+)"
    | \\(?P<escaped>[^\n])
    | (?P<glob>\*|\?|\[[!^]?[^\]\[/\\'"$`^\s!]+\])
    | (?P<bare>(?:[^\s\\'"$`*?\[{}()<>|&;]|\](?!\())++|(?<![^\s;&|])\[(?=[ \t]))
    """,
    re.VERBOSE,
)
_MOST_FILES = 5_000
"""Maximum files for a glob pattern."""
_MOST_STARS = 30
"""Maximum stars in a glob pattern."""
_MOST_WORDS = 500
"""Maximum words in a command."""
_MOST_PROGRAMS = 50
"""Maximum programs in a command."""
Stream = Literal["out", "err", "null"]
"""Destination of an output stream."""


class NeedsShellError(Exception):
    """A command needs a shell, because it is outside `parse`'s grammar. The message says why."""


def needs_shell(why: str) -> NoReturn:
    """Raise `NeedsShellError` with the reason."""
    raise NeedsShellError(why)


@dataclass(slots=True)
class Draft:
    """One program in a pipeline, as written in the command."""

    words: list[str] = field(default_factory=list)
    """The program and its arguments."""
    patterns: list[str] = field(default_factory=list)
    """Each word's glob pattern. Empty for a plain word."""
    stdin: str | None = None
    """The file to read as standard input. None means the pipe, or nothing."""
    out: Stream = "out"
    """Where standard output goes."""
    err: Stream = "err"
    """Where standard error goes."""

    def redirect(self, token: str) -> None:
        """Discard a stream or join it with the other one."""
        match token.replace(" ", ""):
            case "2>&1":
                self.err = self.out
            case ">&2" | "1>&2":
                self.out = self.err
            case "2>/dev/null":
                self.err = "null"
            case "&>/dev/null":
                self.out = self.err = "null"
            case _:
                self.out = "null"


Line = tuple[str, list[Draft]]
"""The operator that joins a pipeline to the previous one, and its programs."""


def parse(command: str, home: Path) -> list[Line]:
    """Parse a command within the grammar. Raise NeedsShellError for other commands."""
    reader, at = _Reader(home), 0
    while at < len(command):
        token = _TOKEN.match(command, at)
        if token is None or token.end() == at:
            needs_shell(f"a shell is needed to interpret {command[at : at + 12]!r}")
        kind = token.lastgroup or ""
        reader.take(kind, token[kind])
        at = token.end()
    return reader.end()


def expand(pattern: str, directory: Path, hurry: Callable[[], None]) -> list[str]:
    """Return the files that match a glob pattern, as a shell would find them.

    `hurry` is called often, and can raise an error to stop a search that takes too long.
    """
    if pattern.count("*") > _MOST_STARS:
        needs_shell(f"{pattern[:20]!r}… is a very long pattern")
    found = ["/" if pattern.startswith("/") else ""]
    parts = [part for part in pattern.split("/") if part]
    for number, part in enumerate(parts, 1):
        ending = "" if number == len(parts) and not pattern.endswith("/") else "/"
        found = [
            place + name + ending
            for place in found
            for name in _matching(directory / place, part, folders=bool(ending), hurry=hurry)
        ]
        if len(found) > _MOST_FILES:
            needs_shell(f"{part!r} matches too many files")
    return sorted(found)


def _matching(place: Path, part: str, *, folders: bool, hurry: Callable[[], None]) -> Iterator[str]:
    hurry()
    plain = re.sub(r"\[([*?\[])\]", r"\1", part)
    if not re.search(r"[*?\[]", re.sub(r"\[[*?\[]\]", "", part)):
        if (place / plain).exists():
            yield plain
        return
    matches = re.compile(translate(part)).match
    try:
        entries = os.scandir(place)
    except OSError:
        return
    with entries:
        for number, entry in enumerate(entries):
            if not number % 1000:
                hurry()
            hidden = entry.name.startswith(".") and not part.startswith(".")
            if not hidden and matches(entry.name) and (entry.is_dir() or not folders):
                yield entry.name


class _Reader:
    """Builds words from tokens, and programs from words."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.draft = Draft()
        self.lines: list[Line] = [("", [self.draft])]
        self.literal: list[str] = []
        self.pattern: list[str] = []
        self.words = 0
        self.in_word = self.is_pattern = self.wants_input = False

    def take(self, kind: str, value: str) -> None:
        if kind in ("blank", "quiet", "operator", "input"):
            self._end_word()
        match kind:
            case "blank":
                pass
            case "quiet":
                self.draft.redirect(value)
            case "input":
                self.wants_input = True
            case "operator":
                self._operator(value)
            case "glob":
                self._add(value, value.replace("[^", "[!"))
                self.is_pattern = True
            case "double":
                value = re.sub(r'\\([\\$`"])|\\\n', r"\1", value)
                self._add(value, glob.escape(value))
            case _:
                if kind == "bare" and not self.in_word and value.startswith("~"):
                    value = self._at_home(value)
                self._add(value, glob.escape(value))

    def end(self) -> list[Line]:
        self._end_word()
        if self.draft == Draft() and len(self.lines) > 1 and self.lines[-1][0] == ";":
            self.lines.pop()
        drafts = [draft for _, drafts in self.lines for draft in drafts]
        if self.wants_input or not all(draft.words for draft in drafts):
            needs_shell("it is incomplete")
        return self.lines

    def _operator(self, value: str) -> None:
        if self.wants_input or len(self.lines) + len(self.lines[-1][1]) > _MOST_PROGRAMS:
            needs_shell("it is incomplete" if self.wants_input else "it runs too many programs")
        if value == "|&":
            self.draft.err = self.draft.out
        if value in ("|", "|&"):
            self.draft = Draft()
            self.lines[-1][1].append(self.draft)
        elif self.lines[-1][1] != [Draft()] or value != "\n":
            self.draft = Draft()
            self.lines.append((";" if value == "\n" else value, [self.draft]))

    def _add(self, literal: str, pattern: str) -> None:
        self.literal.append(literal)
        self.pattern.append(pattern)
        self.in_word = True

    def _end_word(self) -> None:
        if not self.in_word:
            return
        if self.wants_input:
            if self.is_pattern:
                needs_shell("it reads from a pattern")
            self.draft.stdin, self.wants_input = "".join(self.literal), False
        else:
            self.words += 1
            if self.words > _MOST_WORDS:
                needs_shell("it has too many words")
            self.draft.words.append("".join(self.literal))
            self.draft.patterns.append("".join(self.pattern) if self.is_pattern else "")
        self.literal, self.pattern = [], []
        self.in_word = self.is_pattern = False

    def _at_home(self, text: str) -> str:
        if text != "~" and not text.startswith("~/"):
            needs_shell("it names another user's home")
        return str(self.home) + text[1:]


_DEEPEST = 3
"""Maximum depth of nested quoted scripts."""
_ROUGH = re.compile(
    r"""\$?'[^']*'|"(?:[^"\\]|\\[\s\S])*+"|\\[\s\S]|(?P<cut>\$\(|[<>]\(|&&|[;|\n(){}`]++|&(?!>))
    |(?P<to>\d*(?:>>?[|&]?|&>>?))|(?P<blank>[ \t]+)|[^\s'"\\;&|(){}`<>$]++|[\s\S]""",
    re.VERBOSE,
)
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]?(['\"]?)(\w{1,99})\1")
_WRAPPERS = frozenset(
    """sudo doas env nohup nice ionice time timeout command exec xargs setsid stdbuf builtin busybox
    then do else elif if while until !""".split()
)
_SHELLS = frozenset("sh bash zsh dash ksh eval su script watch trap".split())
_INTERPRETERS = re.compile(r"(python|pypy|perl|ruby|node|php)[\d.]*|awk")
_RUNS_TEXT = re.compile(
    r"\b(?:system|popen|execSync|run|call|check_call|check_output|Popen)\s?\(\s{0,9}"
    r"(?:'([^'\n]{1,500})'|\"([^\"\n]{1,500})\")"
)
_REMOVES_TREE = re.compile(r"\brmtree\(\s{0,9}(?:['\"]([^'\"\n]{1,200})['\"]|((?:\w+\.)?home\(\)))")
_BOMB = re.compile(
    r"(?<!\S)(\S{1,40})\s{0,9}\(\)\s{0,9}\{\s{0,9}\1\s{0,9}[|&]\s{0,9}\1(?=[\s;&|}])"
)
_HOME_VARIABLE = re.compile(r"\$(?:HOME\b|\{HOME(?::\?)?\})")
_HOME = re.compile(r"~root|/(?:home|Users)/(?:[\w.-]+|\*|\$\{?USER\}?)")
_SYSTEM = re.compile(
    r"/(bin|boot|dev|etc|home|lib\w*|opt|proc|root|run|sbin|srv|sys|usr|var|nix|System|Library"
    r"|Applications|Users|Volumes)?|/(usr|etc|lib|lib64|sys)/[\w.-]+|/var/(lib|db)"
)
_DISK = re.compile(r"/dev/(r?disk\d|[shv]d[a-z]|xvd|nvme\d|mmcblk|mapper/|dm-|md\d|k?mem$)\w*")
_FILES = re.compile(
    r"/etc/(passwd|shadow|group|gshadow|sudoers|fstab|crypttab|ld\.so\.preload)|/boot/.+"
    r"|/proc/sysrq-trigger"
)
_RECURSIVE = re.compile(r"-[A-Za-z]*[rR]|--recursive|--no-preserve-root")
_SOME_OF_IT = re.compile(r"-(i?name|i?path|i?regex|[acm](time|min)|newer\w*|size|empty|user|perm)")


@dataclass(slots=True)
class RoughCommand:
    """A simple command, approximately parsed."""

    words: list[str] = field(default_factory=list)
    """The program and its arguments."""
    writes: list[tuple[str, str]] = field(default_factory=list)
    """Output redirections: operator and path."""
    quoted: list[str] = field(default_factory=list)
    """Contents of the quoted strings."""


def destroys(command: str, home: Path) -> str:
    """Describe the damage that a command would do; return "" if none is recognised."""
    command = on_one_line(command)
    if _BOMB.search(command):
        return "it is a fork bomb"
    command = _HOME_VARIABLE.sub("~", command)
    directory = "."
    for rough in rough_commands(command):
        name, *rest = bare(rough.words, _NAMES) or [""]
        if name in ("cd", "pushd"):
            directory = join(directory, rest[0] if rest else "~")
        if lost := _written(rough, directory) or _destroyed(basename(name), rest, directory, home):
            return lost
    return ""


def on_one_line(command: str) -> str:
    """Return the command with backslash-continued lines joined."""
    return re.sub(r"(\\\\)|\\\n", r"\1", command)


def rough_commands(source: str, depth: int = 0) -> Iterator[RoughCommand]:
    """Yield approximately the commands that a shell would run, in linear time.

    Scripts that are passed to a shell are included.
    """
    source, bodies = _without_heredocs(source)
    for body in bodies if depth < _DEEPEST else ():
        yield from rough_commands(body, depth + 1)
    rough, text, to_file = RoughCommand(), None, ""
    for token in (*_ROUGH.finditer(source), None):
        value = token.group() if token else "\n"
        if token and not (token["cut"] or token["to"] or token["blank"]):
            text = (text or "") + _unquoted(value, rough)
            continue
        if text is not None:
            if to_file:
                rough.writes.append((to_file, text))
            else:
                rough.words.append(text)
            text, to_file = None, ""
        if token and token["to"]:
            to_file = value.lstrip("0123456789")
        elif not token or token["cut"]:
            if rough.words or rough.writes:
                yield rough
            for script in _inner(rough) if depth < _DEEPEST else ():
                yield from rough_commands(script, depth + 1)
            rough, to_file = RoughCommand(), ""


def bare(words: list[str], names: Collection[str]) -> list[str]:
    """Return `words` without leading wrappers (`sudo -u me`), their options, and assignments.

    A word in `names` after an option counts as the program, not as the option's value.
    """
    wrapped = False
    for at, word in enumerate(words):
        if basename(word) in _WRAPPERS or re.match(r"\w+=", word):
            wrapped = True
        elif not wrapped or not (
            word.startswith("-")
            or re.fullmatch(r"[\d.]+[smhd]?", word)
            or (words[at - 1].startswith("-") and basename(word) not in names)
        ):
            return words[at:]
    return []


def _unquoted(value: str, rough: RoughCommand) -> str:
    if value[:1] == "\\":
        return value[1:]
    if value[-1:] in "'\"" and len(value) > 1:
        value = value.removeprefix("$")[1:-1]
        rough.quoted.append(value)
    return value


def _inner(rough: RoughCommand) -> Iterator[str]:
    """Yield the quoted strings that a shell would run as scripts."""
    name = basename((bare(rough.words, _NAMES) or [""])[0])
    for text in rough.quoted:
        if name in _SHELLS or "$(" in text or "`" in text:
            yield text
        elif _INTERPRETERS.fullmatch(name):
            for found in _RUNS_TEXT.finditer(text):
                yield found[1] or found[2]
            for found in _REMOVES_TREE.finditer(text):
                yield f"rm -r {found[1] or '~'}"
    if name == "eval" and not rough.quoted:
        yield " ".join(rough.words[1:])


def _without_heredocs(source: str) -> tuple[str, list[str]]:
    """Return a script without its here-documents, and the here-documents that a shell would run."""
    if "<<" not in source:
        return source, []
    kept: list[str] = []
    run: list[str] = []
    body: list[str] = []
    ends, shell = "", False
    for line in source.split("\n"):
        if not ends:
            kept.append(line)
            if found := _HEREDOC.search(line):
                ends = found[2]
                shell = any(basename(word) in _SHELLS for word in line.split()[:9])
        elif line.strip() != ends:
            body.append(line)
        else:
            run += ["\n".join(body)] if shell else []
            body, ends = [], ""
    return "\n".join(kept), run


def _written(rough: RoughCommand, directory: str) -> str:
    for operator, written in rough.writes:
        path = normpath(join(directory, written))
        if _DISK.match(path):
            return f"it overwrites the disk {path}"
        if _FILES.fullmatch(path) and ">>" not in operator:
            return f"it overwrites the system file {path}"
    return ""


def _destroyed(name: str, rest: list[str], directory: str, home: Path) -> str:
    rule = _RULES.get("mkfs" if name.startswith("mkfs.") else name)
    if rule is None or rest in (["--help"], ["--version"]):
        return ""
    paths = [_path(word, directory, home) for word in rest if not word.startswith("-")]
    return rule(rest, paths)


def _path(word: str, directory: str, home: Path) -> str:
    """Return the path that a word refers to, with home directories as `~`.

    A pattern for a folder's contents (`/*`) counts as the folder.
    """
    if len(word) > 1 and word.partition("=")[0] == "of":
        word = word[3:]
    word = re.sub(r"/([*?]+|\.\*|\.)?$", "", word) or "/"
    if word in ("*", ".*", "."):
        word = ""
    path = normpath(join(directory, _HOME.sub("~", word, count=1))).replace("//", "/")
    if path in (str(home), "/root"):
        return "~"
    return "/home" if path in ("/home/*", "/Users/*") else path


def _system_path(paths: list[str]) -> str:
    for path in paths:
        if path == "~":
            return "a home directory"
        if _SYSTEM.fullmatch(path):
            return "the whole file system" if path == "/" else f"the system directory {path}"
    return ""


def _deletes(rest: list[str], paths: list[str]) -> str:
    lost = _system_path(paths) if any(map(_RECURSIVE.match, rest)) else ""
    lost = lost or next((path for path in paths if _FILES.fullmatch(path)), "")
    return f"it deletes {lost}" if lost else ""


def _moves(_: list[str], paths: list[str]) -> str:
    lost = _system_path(paths[:-1])
    return f"it moves {lost} away" if lost else ""


def _permits(rest: list[str], paths: list[str]) -> str:
    lost = _system_path(paths[1:])
    whole = lost == "the whole file system" or any(map(_RECURSIVE.match, rest))
    return f"it changes the permissions of {lost}" if lost and whole else ""


def _finds(rest: list[str], paths: list[str]) -> str:
    some = any(map(_SOME_OF_IT.fullmatch, rest)) and not {"!", "-not", "-o"} & {*rest}
    removes = "-delete" in rest or any(basename(word) == "rm" for word in rest)
    lost = _system_path(paths[:1]) if removes and not some else ""
    return f"it deletes {lost}" if lost else ""


def _overwrites(rest: list[str], paths: list[str]) -> str:
    lost = [path for path in paths if _DISK.match(path) or _FILES.fullmatch(path)]
    looks = {"--append", "-l", "--list", "-p"} & {*rest}
    reads = lost == [path for path in paths if f"if={path}" in rest]
    return f"it overwrites {lost[0]}" if lost and not looks and not reads else ""


def _formats(_: list[str], paths: list[str]) -> str:
    return (
        ("it destroys the data on a disk") if any(path.startswith("/dev") for path in paths) else ""
    )


def _syncs(rest: list[str], paths: list[str]) -> str:
    return _deletes(["-r"], paths[-1:]) if any(word.startswith("--del") for word in rest) else ""


def _kills(rest: list[str], _: list[str]) -> str:
    targets = rest[1:] if len(rest) > 1 else rest
    return "it kills every process" if {"-1", "1"} & {*targets} else ""


def _kills_named(rest: list[str], _: list[str]) -> str:
    if not [word for word in rest if word not in ("-9", "-KILL", "-15", "-TERM")]:
        return "it kills every process" if rest else ""
    by_user = any(re.fullmatch(r"-[uU]|--u?e?u?id|--user", word) for word in rest[:-1])
    names = [word for word in rest if not word.startswith("-")]
    return "it kills every process" if {".", ".*", ""} & {*names} or by_user else ""


def _ends(rest: list[str], _: list[str]) -> str:
    return "" if {"-c", "--show"} & {*rest} else "it shuts the machine down"


def _ends_by_verb(rest: list[str], _: list[str]) -> str:
    verbs = {"reboot", "poweroff", "halt", "kexec", "0", "6"}
    return "it shuts the machine down" if verbs & {*rest} else ""


def _destroys_storage(rest: list[str], _: list[str]) -> str:
    verbs = {"destroy", "labelclear", "luksFormat", "erase", "mklabel", "mktable", "rm", "-Z"}
    return "it destroys the data on a disk" if verbs & {*rest} else ""


_Rule = Callable[[list[str], list[str]], str]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("rm", "unlink", "rmdir"), _deletes),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _permits),
    **dict.fromkeys("dd shred wipefs blkdiscard tee cp truncate sgdisk".split(), _overwrites),
    **dict.fromkeys(("mkfs", "mkswap"), _formats),
    **dict.fromkeys(("shutdown", "reboot", "halt", "poweroff"), _ends),
    **dict.fromkeys(("systemctl", "init", "telinit"), _ends_by_verb),
    **dict.fromkeys(("zpool", "cryptsetup", "parted", "vgremove", "lvremove"), _destroys_storage),
    **dict.fromkeys(("killall", "killall5", "pkill"), _kills_named),
    "kill": _kills,
    "mv": _moves,
    "find": _finds,
    "rsync": _syncs,
}
_NAMES = frozenset({*_RULES, *_SHELLS, "python", "python3", "perl", "ruby", "node", "cd"})

"""Answer questions about files by rules: which tool to call, and which lines are the answer.

A small model runs a file's name as code or invents the content. Here the answer is always lines of
the file itself: those that contain the question's words, together with their heading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes_nb.extras.local.questions import is_english
from hermes_nb.storage.words import stem

_NAME = re.compile(
    r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:md|txt|csv|tsv|json|py|toml|ya?ml|ini|cfg|log|"
    r"rst|sql|html?|xml|ipynb|xlsx?|sh|R|tex|env|parquet|pdf|docx?)|README|LICEN[CS]E|Makefile)\b"
)
_FOLDER = re.compile(
    r"\b(?:the )?([\w./-]+?)/? (?:folder|directory)\b|\b(?:in|inside) ([\w.-]+(?:/[\w.-]+)*)/"
)
_FILES = re.compile(r"\b(?:files?|folder|directory)\b")
_THING = r"(?:the )?(?:function |class |method |variable )?[`'\"]?"
_WHERE = re.compile(rf"\b[Ww]here(?: is|'?s| are) {_THING}(\w+)[`'\"]? (?:defined|declared)\b")
_DEFINES = re.compile(rf"\bdefin\w+ {_THING}(\w+)")
_MENTIONS = re.compile(
    r"\b(?:mentions?|contains?|uses?|imports?|includes?|says?|talks? about|has|have)\b"
    r" (?:the (?:word|text) )?(?!here\b|there\b)[`'\"]?([^`'\"?.!]+)"
)
_STOP = frozenset(
    """a an the this that these those there it its i you we they is are was were be been do does did
    has have had of in on at from to for with and or by as what which who whom whose when
    where how much many why according file files folder say says said state states stated
    contain contains mention mentions tell show give find value set setting configured
    configure defined define use used uses name number date day time year happen happened
    happens s line lines function variable key option version contact person me my our your
    project please can could would will should still""".split()
)
_LICENCE = {"licens": "licenc"}
_ABOUT = re.compile(r"\babout\?*\s*$|\b(?:summar\w+|purpose)\b|\bwhat does \S+ (?:do|contain)\b")
_SETTING = re.compile(r"^\W*([A-Za-z_][\w.-]*)[\"']?\s*(?:=|:|==)\s*(\S.*?),?$")
_HEADING = re.compile(r"^#+ |^\[.+\]$|^[\w -]+:$")
MOST_LINES, MOST_NAMES = 4, 30
"""Maximum lines and file names in an answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool to call."""

    name: str
    arguments: dict[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """An answer, or why there is none."""

    text: str
    found: bool = True
    verified: bool = True

    @property
    def checked(self) -> bool:
        """Whether it comes from the user's data or files, and not from the model's memory."""
        return self.found and self.verified


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of this turn and its result."""

    name: str
    arguments: dict[str, object]
    text: str
    failed: bool


def about_files(text: str) -> bool:
    """Return whether a question is about files."""
    return any(found.search(text) for found in (_NAME, _WHERE)) or bool(_FILES.search(text.lower()))


def step(text: str, seen: Sequence[PastCall]) -> Call | FileAnswer | None:
    """Return the next call for a question about files, or the answer; None if no rule applies."""
    last = seen[-1] if seen else None
    if last is not None and last.name == "list_files":
        return _listed(last)
    if last is not None and last.name == "search_files" and last.arguments.get("pattern"):
        return _matching_files(last)
    names = _NAME.findall(text)
    if not names or re.search(r"\b(?:which|what) files? (?!is|are)\w+", text.lower()):
        return _search(text) or (_list(text) if not names else None)
    name = _file_to_read(text, names)
    if last is None:
        return Call("read_file", {"path": name}) if "." in name else _looked_for(name)
    return _read(text, name, last, again=len(seen) > 1)


def _read(text: str, name: str, last: PastCall, *, again: bool) -> Call | FileAnswer:
    """Return the answer from a file, or the next call that looks for it."""
    if last.name == "read_file" and not last.failed:
        return _answer(text, str(last.arguments.get("path", name)), last.text)
    if last.name == "read_file" and "no file" in last.text and not again:
        return _looked_for(name)
    if last.name == "search_files" and not last.failed:
        paths = [line for line in last.text.split("\n") if name.lower() in line.lower()]
        if paths and not last.text.startswith("no "):
            return Call("read_file", {"path": paths[0]})
    if last.failed and "no file" not in last.text:
        return FileAnswer(f"`{name}` could not be read as text", found=False)
    return FileAnswer(f"there is no file `{name}` here", found=False)


def _looked_for(name: str) -> Call:
    last = name.rpartition("/")[2]
    return Call("search_files", {"pattern": "", "glob": f"**/{last}*"})


def _file_to_read(text: str, names: Sequence[str]) -> str:
    """Return the file to read: the one after "according to" or "in", else the first."""
    for name in names:
        if re.search(rf"\b(?:according to|in|of)(?: the)? [`'\"]?{re.escape(name)}", text):
            return name
    return names[0]


def _search(text: str) -> Call | None:
    """Return the search for "which file mentions …"."""
    if not re.search(r"\b(?:which|what|where|any)\b", text.lower()):
        return None
    if found := _WHERE.search(text) or _DEFINES.search(text):
        name = re.escape(found[1])
        return Call("search_files", {"pattern": rf"\b(def|class) {name}\b|^\s*{name}\s*[:=]"})
    if (found := _MENTIONS.search(text)) and _FILES.search(text[: found.start()].lower()):
        return Call("search_files", {"pattern": re.escape(found[1].strip()), "ignore_case": True})
    return None


def _matching_files(seen: PastCall) -> FileAnswer:
    paths = [m[1] for m in re.finditer(r"(?m)^(.+?):\d+: ", seen.text)]
    if seen.failed or not paths:
        return FileAnswer("no file here contains that", found=False)
    names = list(dict.fromkeys(paths))
    return FileAnswer(f"It is in {_join_items([f'`{name}`' for name in names[:MOST_NAMES]])}.")


def _list(text: str) -> Call | None:
    if not re.search(r"\b(?:what|which|list|show|see|ls)\b", text.lower()):
        return None
    for found in _FOLDER.finditer(text):
        folder = found[1] or found[2]
        if folder.lower() not in {"this", "the", "current", "working", "a", "my", "same"}:
            return Call("list_files", {"path": folder})
    return Call("list_files", {"path": "."})


def _listed(seen: PastCall) -> FileAnswer:
    path = seen.arguments.get("path", ".")
    if seen.failed:
        return FileAnswer(f"there is no folder `{path}` here", found=False)
    names = [re.sub(r"  +\S+ \w+$", "", line.strip()) for line in seen.text.split("\n")]
    shown = [f"`{name}`" for name in names[:MOST_NAMES] if name and not name.startswith("[")]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    where = "This folder" if path == "." else f"`{path}`"
    return FileAnswer(
        f"{where} contains {_join_items(shown)}{more}." if shown else f"{where} is empty."
    )


def _answer(text: str, path: str, shown: str) -> FileAnswer:
    """Return the lines of a file that answer the question."""
    lines = [line.partition("\t")[2] for line in shown.split("\n") if "\t" in line]
    total = re.search(r" of ([\d,]+); continue", shown)
    count = int(total[1].replace(",", "")) if total else len(lines)
    table = path.endswith((".csv", ".tsv"))
    lower = text.lower()
    if table and re.search(r"\bhow many\b.*\b(?:rows|records|entries)\b", lower):
        return FileAnswer(f"`{path}` has {count - 1:,} rows below its header.")
    if re.search(r"\bhow many\b.*\b(?:lines|rows)\b", lower):
        return FileAnswer(f"`{path}` has {count:,} lines.")
    if table and re.search(r"\b(?:columns|fields|header)\b", lower):
        separator = "\t" if path.endswith(".tsv") else ","
        return FileAnswer(f"The columns of `{path}` are {_join_items(lines[0].split(separator))}.")
    if table and re.search(
        r"\b(?:average|mean|median|total|sum|how many|most|highest|lowest|best|worst)\b", lower
    ):
        return FileAnswer(
            f"`{path}` is not loaded as a table; load it with pandas and ask again", found=False
        )
    if re.search(r"\b(?:open|todo|remaining|left to do|undone)\b", lower) and "[ ]" in shown:
        return _quoted(path, [line.replace("[ ]", "").strip() for line in lines if "[ ]" in line])
    if _ABOUT.search(lower) and not re.search(r"\bsay", lower):
        most = MOST_LINES if "summar" in lower else 2
        return _quoted(path, [line for line in _plain(lines) if line][:most])
    return _best(text, path, lines)


def _plain(lines: Sequence[str]) -> list[str]:
    return [line.strip().strip("#\"'*- ").strip() for line in lines]


def _stems(text: str) -> set[str]:
    found = {stem(word) for word in re.findall(r"[a-z]+|\d+", text.lower())}
    return {_LICENCE.get(each, each) for each in found}


def _best(text: str, path: str, lines: Sequence[str]) -> FileAnswer:
    """Return the lines with most of the question's words; all of these must be in the file."""
    asked = re.sub(r"\b(?:it|i|we|they|you) \w+", " ", text.lower())  # a verb
    asked = re.sub(
        rf"\b(?:[\w.-]+/)*{re.escape(path.rpartition('/')[2].lower())}|\breadme\b", " ", asked
    )
    words = [
        w
        for w in re.findall(r"[a-z]+|\d+", asked.replace("_", " "))
        if w not in _STOP and len(w) > 1
    ]
    wanted = {_LICENCE.get(stem(word), stem(word)) for word in words}
    missing = [w for w in words if _LICENCE.get(stem(w), stem(w)) not in _stems("\n".join(lines))]
    suffixes = set(re.findall(r"\.(\w+)\b", text.lower()))
    missing = [word for word in missing if word not in suffixes]
    if not words:  # "what is in notes.md"
        return _quoted(path, [line for line in _plain(lines) if line][:MOST_LINES])
    english = is_english(text)
    if (missing and english) or len(missing) == len(words):
        return FileAnswer(f"`{path}` does not mention `{missing[0]}`", found=False)
    heading, scores = "", list[tuple[float, int]]()
    for number, line in enumerate(lines):
        if _HEADING.match(line):
            heading = line
        own = len(wanted & _stems(line))
        scores.append((own + 0.5 * len(wanted & (_stems(heading) - _stems(line))), number))
    most = max(score for score, _ in scores)
    best = [number for score, number in scores if score == most]
    shown = [said for number in best[:MOST_LINES] for said in _line_content(lines, number)][
        :MOST_LINES
    ]
    dated = re.match(r"\W*(?:when|how (?:many|much|long|high|old))\b", text.lower())
    if dated and not any(re.search(r"\d", line) for line in shown):
        return FileAnswer(f"`{path}` gives no number for that", found=False)
    return replace(_quoted(path, shown), verified=english)


def _line_content(lines: Sequence[str], number: int) -> list[str]:
    """Return a line's words: a function's docstring, what is below a heading, or the line."""
    line, rest = lines[number], [each for each in lines[number + 1 :] if each.strip()]
    if re.match(r"\s*(?:def|class|async def) ", line):
        return (
            _plain(rest[:1])
            if rest and rest[0].lstrip().startswith(('"""', "'''"))
            else [line.strip()]
        )
    if _HEADING.match(line) and rest and not _HEADING.match(rest[0]):
        return _plain(rest[:2])
    return [line.strip().removeprefix("- ").removeprefix("* ").strip()]


def _quoted(path: str, lines: Sequence[str]) -> FileAnswer:
    if not lines:
        return FileAnswer(f"`{path}` does not say that", found=False)
    if len(lines) == 1 and (setting := _SETTING.match(lines[0])):
        return FileAnswer(f"`{setting[1]}` is {setting[2].strip()} in `{path}`.")
    return FileAnswer(f"`{path}` says: {' · '.join(line.rstrip() for line in lines)}")


def _join_items(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)

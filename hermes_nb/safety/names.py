"""What the names of files and folders mean, by `names.toml`: secrets, what runs or instructs later.

`protected` judges paths by them, `survey` and `later` walk. Names are given in lower case.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

_HARMLESS = re.compile(
    r"\.env(?:\..+)?[._-](?:example|sample|template|dist|defaults)|(?:example|sample)\.env|cacert\.pem"
    r"|(?:credentials|secrets?)\.(?:py|pyi|md|rst|ipynb|html|css|js|ts|c|h|go|rs|java|r)"
)
"""Made to be shared, or code and text about the thing."""
_COPY = re.compile(r"(?<=.)(?:~|\.(?:bak|backup|copy|old|orig|save|sw[a-p]|tmp))+$")
"""What editors and people add to the name of a file that they keep."""
NOT_IMPORTED = frozenset({"test", "tests", "this", "antigravity", "docs", "examples", "__main__"})
"""Modules that nobody imports by accident, or folders that every project has."""
NOT_WALKED = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__"})
"""Large, and full of other people's files: what is secret there is no secret."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names and what is said of each; a pair is a name in a folder of another."""

    folders: Mapping[str, str]
    pairs: Mapping[tuple[str, str], str]
    files: Mapping[str, str]
    file: re.Pattern[str]
    """Any of the files, but `.pth`: elsewhere than in installed code it is a model's weights."""

    def above(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component whose whole content is meant and why, both "" if there is none."""
        for part in parts:
            if part in self.folders:
                return part, self.folders[part]
        return self.paired(parts)

    def paired(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component that is meant because of the one before it, and why."""
        for first, second in pairwise(parts):
            for (one, two), reason in self.pairs.items():
                if first == one and fnmatchcase(second, two):
                    return second, reason
        return "", ""

    def named(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component that is meant and what is said of it, both "" if none is."""
        component, reason = self.above(parts)
        if reason or not parts:
            return component, reason
        matches = (why for pattern, why in self.files.items() if fnmatchcase(parts[-1], pattern))
        reason = next(matches, "")
        return parts[-1] if reason else "", reason


@cache
def known_names(kind: Literal["secret", "run", "later"]) -> Names:
    """Return a table; what programs obey (`run`) also runs `later`."""
    data = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
    parts = [data["run"], data["later"]] if kind == "later" else [data[kind]]
    folders, pairs, files = (
        {name: why for part in parts for why, listed in part[sort].items() for name in listed}
        for sort in ("folders", "pairs", "files")
    )
    split = {
        (first, second): why for pair, why in pairs.items() for first, second in [pair.split("/")]
    }
    file = re.compile("|".join(translate(name) for name in files if name != "*.pth"))
    return Names(folders, split, files, file)


def secret(parts: tuple[str, ...]) -> tuple[str, str]:
    """Return the component that is secret and what it holds, both "" if none is."""
    found = known_names("secret").above(parts)
    if found[1] or not parts or not secret_file(parts[-1]):
        return found
    return known_names("secret").named((_COPY.sub("", parts[-1]),))


def secret_file(name: str) -> bool:
    """Say whether a file of this name holds secrets."""
    name = _COPY.sub("", name)
    return bool(known_names("secret").file.match(name)) and not _HARMLESS.fullmatch(name)

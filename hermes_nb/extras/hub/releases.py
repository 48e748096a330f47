"""`jupyter hermes skills`: sign, verify, revoke and restore shared skills."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hermes_nb.cli.command import FAILED, OK, UsageProblem
from hermes_nb.cli.terminal import ask_on_terminal
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import number_of, one_line
from hermes_nb.extras.hub.signed import (
    INDEX,
    Index,
    Release,
    digests_of,
    files_in,
    private_key,
    public_key,
    read_file,
    read_index,
    write_files,
)
from hermes_nb.safety.administrator import policy
from hermes_nb.skills.discovery import DOCUMENT, decoded
from hermes_nb.skills.document import SkillError, read_document
from hermes_nb.skills.sources import difference, taken


def skills(arguments: argparse.Namespace) -> int:
    """Run the action and return the exit code."""
    named = arguments.action in ("revoke", "restore")
    words = list(arguments.words)
    if named and not words:
        raise UsageProblem(
            f"give the skill's name: `jupyter hermes skills {arguments.action} NAME`"
        )
    name = words.pop(0) if named else ""
    directory = words[0] if words else str(policy().values.get("shared_skills", ""))
    if not directory or words[1:]:
        raise UsageProblem("give exactly one skills directory")
    try:
        if arguments.action == "verify":
            return _verify(Path(directory), arguments)
        if not arguments.key:
            raise UsageProblem("pass the file with the private key: --key FILE")
        release = Release(Path(directory), key := private_key(Path(arguments.key)))
        if arguments.action == "sign":
            done = _signed(release, yes=arguments.yes)
            if done is None:
                return FAILED
        else:
            done = _revoked(release, name, arguments)
    except (OSError, SkillError) as error:
        raise ConfigError(str(error)) from error
    print(_index_summary(done))
    print(f'for the policy: "skills_key": "{public_key(key)}"')
    return OK


def _verify(directory: Path, arguments: argparse.Namespace) -> int:
    """Compare all files with the index, print the differences, and return the exit code."""
    key = arguments.public or str(policy().values.get("skills_key", ""))
    if not key:
        raise UsageProblem(
            "there is no policy with a skills_key on this machine; give the public key: "
            "--public KEY"
        )
    index = read_index(directory / INDEX, key)
    there = digests_of({name: read_file(path) for name, path in files_in(directory).items()})
    odd = sorted({name for name, _ in there.items() ^ index.files.items()})
    for name in odd:
        state = "is missing" if name not in there else "was changed"
        print(f"{visible(name)} {state if name in index.files else 'is not in the index'}")
    print(_index_summary(index))
    return FAILED if odd else OK


def _signed(release: Release, *, yes: bool) -> Index | None:
    """Show the changes, ask, and sign; return None if the user declines."""
    release.before()  # raises for an index with a different key
    before, now = release.contents(signed=True), release.contents(signed=False)
    print(visible(difference(before, now), lines=True) or "nothing has changed")
    try:
        with TemporaryDirectory() as copy:  # the directory may change meanwhile
            write_files(Path(copy), now)
            found = taken(Path(copy))[1]
        for seen in found:
            why = f": {one_line(visible(seen.why), 300)}" if seen.level != "clean" else ""
            print(f"{visible(seen.name)} looks {seen.level}{why}")
    except SkillError as error:
        print(f"not everything was scanned: {visible(str(error))}")
    question = f"Sign {number_of(len(now), 'file')}? [y/N] "
    if not yes and not sys.stdin.isatty():
        raise UsageProblem("not a terminal: pass --yes to sign")
    if not yes and ask_on_terminal(question).strip().lower() not in ("y", "yes"):
        return None
    return release.sign(now)


def _revoked(release: Release, name: str, arguments: argparse.Namespace) -> Index:
    """Revoke or restore a skill under its own name and its folder's; return the index."""
    index = release.before()
    there = _names(index, release.contents(signed=True))
    names = {name, *(each for pair in there.items() if name in pair for each in pair)}
    if arguments.action == "restore":
        if name not in index.revoked:
            raise ConfigError(f"{name!r} is not revoked")
        return release.revoke(names)
    if name not in {*there, *there.values()}:
        raise ConfigError(
            f"there is no skill {name!r} in the index; its skills are {', '.join(there)}"
        )
    return release.revoke(names, arguments.why)


def _names(index: Index, contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return a mapping from skill folder names to skill names."""
    names = {}
    for path in index.files:
        if path.endswith(f"/{DOCUMENT}"):
            folder = path.split("/")[-2]
            names[folder] = folder
            with suppress(SkillError):  # a skill without a valid name is never offered
                text = decoded(contents.get(path, b""))[0]
                names[folder] = read_document(text, folder=folder).name
    return names


def _index_summary(index: Index) -> str:
    gone = f"; revoked: {', '.join(sorted(map(visible, index.revoked)))}" if index.revoked else ""
    return f"index {index.number}: {number_of(len(index.files), 'file')}{gone}"

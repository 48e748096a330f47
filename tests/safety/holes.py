"""Commands that once ran code or showed secrets unasked, as data, and a folder that they bite in.

`touch PWN` is the harm of each that runs something, "hunter2" what a secret holds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

SECRET = "hunter2-of-the-test"

DATA = Path(__file__).with_name("cases")


def listed(name: str) -> list[str]:
    """Return the lines of a file of data."""
    return (DATA / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


ARITHMETIC = listed("arithmetic.txt")
SECRETS = listed("secrets.txt")
EVIL_SETTINGS: dict[str, str] = json.loads((DATA / "evil_settings.json").read_text("utf-8"))
GIT = """
git status|git status -s|git status --porcelain|git diff|git diff HEAD|git log -p|git log --stat
git show|git log --format=%G?|git blame f.txt|git grep x|git stash list|git stash show -p
git ls-files -m|git branch -a|git describe --always|git --no-pager log|git reflog
"""
GIT = GIT.strip().replace("\n", "|").split("|")


def make_holes(root: Path) -> Path:
    """Make a home with a key and a workspace full of traps; return the workspace."""
    work, home = root / "work", root / "home"
    for name in ("work/.env", "work/sub/.env.prod", "home/.ssh/id_rsa", "work/.git-credentials"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"KEY={SECRET}\n", encoding="utf-8")
    texts = {"notes.txt": "alpha\nbeta\n", "list.txt": ".env\n", "@opts": ".env\n"}
    for name, text in texts.items():
        (work / name).write_text(text, encoding="utf-8")
    links = {"env.txt": ".env", "id.txt": home / ".ssh/id_rsa", "keys": home / ".ssh"}
    for name, target in {**links, "self": "/proc/self"}.items():
        (work / name).symlink_to(target)
    os.link(work / ".env", work / "plain.txt")
    os.mkfifo(work / "pipe")
    for name in ("evil.sh", "ls", "cat", "git", "sort"):
        (work / name).write_text(f"#!/bin/sh\ntouch {work}/PWN\n", encoding="utf-8")
        (work / name).chmod(0o755)
    for name in ("--output=PWN", "-o", "-exec"):
        (work / name).write_text("x\n", encoding="utf-8")
    return work


def make_repository(place: Path, *settings: tuple[str, str], bare: bool = False) -> None:
    """Make a repository in which attributes point at drivers, a hook waits and a setting is set."""
    place.mkdir(parents=True, exist_ok=True)
    if bare:
        git(place, "init", "-q", "--bare", ".")
        git(place, "config", "core.bare", "false")
        git(place, "config", "core.worktree", ".")
    else:
        git(place, "init", "-q", ".")
        (place / "f.txt").write_text("a\n", encoding="utf-8")
        for name in (".env", ".netrc"):
            (place / name).write_text(f"KEY={SECRET}\n", encoding="utf-8")
        git(place, "add", "-f", ".")
        git(place, *AUTHOR, "commit", "-qm", "first")
        git(place, "rm", "-q", ".env", ".netrc")
        git(place, *AUTHOR, "commit", "-qm", "second")
    folder = place if bare else place / ".git"
    (folder / "info").mkdir(exist_ok=True)
    (folder / "info/attributes").write_text("* diff=x filter=x\n", encoding="utf-8")
    for key, value in settings:
        git(place, "config", key, value)
    if not bare:
        (place / "f.txt").write_text("b\n", encoding="utf-8")


AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(place: Path, *words: str) -> str:
    """Run git itself."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *words]
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout

"""What well-known commands do, in words that whoever is asked about them knows.

It only makes a question readable: whether one is asked is decided elsewhere, and a command that is
not in these tables asks too.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 2
_LONGEST = 40
"""Characters of a name that is told."""

_OF_ITS_OPERANDS = {
    "rm": "deletes",
    "rmdir": "deletes",
    "unlink": "deletes",
    "shred": "destroys",
    "truncate": "empties or cuts",
    "mkdir": "creates",
    "touch": "creates or touches",
    "tee": "writes",
    "kill": "ends the process",
    "pkill": "ends processes named",
    "killall": "ends processes named",
    "source": "runs the script",
    ".": "runs the script",
}
"""What they do to what they are given."""
_PLAINLY = {
    "mv": "moves or renames files",
    "cp": "copies files, and may overwrite others",
    "ln": "makes links",
    "install": "copies files, and may overwrite others",
    "rsync": "copies files, and may use the network",
    "dd": "copies bytes to files or disks",
    "chmod": "changes who may use files",
    "chown": "changes whose files they are",
    "tar": "packs or unpacks files",
    "zip": "packs files",
    "unzip": "unpacks files",
    "gzip": "replaces files by packed ones",
    "gunzip": "replaces files by unpacked ones",
    "make": "does what a Makefile says",
    "pip": "installs, removes or looks up Python packages",
    "pip3": "installs, removes or looks up Python packages",
    "uv": "installs or runs Python packages",
    "conda": "changes or inspects environments",
    "mamba": "changes or inspects environments",
    "npm": "installs or runs JavaScript packages",
    "npx": "runs a JavaScript package",
    "apt": "changes what is installed on this machine",
    "apt-get": "changes what is installed on this machine",
    "brew": "changes what is installed on this machine",
    "curl": "uses the network",
    "wget": "uses the network",
    "ssh": "runs something on another machine",
    "scp": "copies files over the network",
    "sudo": "runs as administrator",
    "docker": "starts or changes containers",
    "jupyter": "starts Jupyter's programs",
    "pytest": "runs the project's tests, which is code",
    "kaggle": "uses the network",
    "dvc": "changes or fetches data",
    "crontab": "changes what runs by the clock",
    "nohup": "starts what goes on after this turn",
}
_GIT = {
    "add": "puts changes into git's index",
    "commit": "makes a commit",
    "push": "sends commits to another machine",
    "pull": "fetches and merges commits",
    "fetch": "fetches commits over the network",
    "clone": "downloads a repository",
    "checkout": "switches branches or puts files back, and may drop changes",
    "switch": "switches branches",
    "restore": "puts files back and drops changes in them",
    "reset": "moves the branch or the index, and may drop changes",
    "clean": "deletes files that git does not know",
    "stash": "puts changes aside",
    "merge": "merges another branch",
    "rebase": "rewrites commits",
    "branch": "creates, renames or deletes branches",
    "tag": "creates or deletes tags",
    "rm": "deletes files",
    "mv": "moves files",
    "init": "makes a repository",
    "config": "changes git's configuration",
}


def deed(name: str, operands: Sequence[str] = ()) -> str:
    """Return what a command does, to complete "asks because ..."."""
    if verb := _OF_ITS_OPERANDS.get(name):
        return f"it {verb} {_listed(operands)}"
    if told := _PLAINLY.get(name):
        return f"{name} {told}"
    return f"Hermes does not know what {name!r} does; it may change something"


def git_deed(verb: str) -> str:
    """Return what a git command does, to complete "asks because ..."."""
    told = _GIT.get(verb, "may change the repository")
    return f"git {verb} {told}"


def _listed(operands: Sequence[str]) -> str:
    names = [each for each in operands if each and not each.startswith("-")]
    shown = [each if len(each) <= _LONGEST else f"{each[:_LONGEST]}…" for each in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown = [", ".join(shown), f"{len(names) - _SHOWN} more"]
    return " and ".join(shown) or "something"

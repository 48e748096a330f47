"""What a command may do, what it asks for, and how well this machine can confine it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.errors import HermesError

LevelName = Literal["bubblewrap", "landlock", "none"]


class NoSandboxError(HermesError):
    """The command cannot be confined as asked; the text says why."""


class Need(enum.Enum):
    """What the words of a command want beyond reading; `CREDENTIALS`: no sandbox at all.

    `LATER` has something run when nobody watches, and so asks in every mode.
    """

    WRITE = "write"
    GIT = "git"
    ENVIRONMENT = "environment"
    NETWORK = "network"
    HOME = "home"
    CREDENTIALS = "credentials"
    LATER = "later"


class SandboxProfile(enum.Flag):
    """What a command may do; flags combine. `OUTSIDE` is no sandbox at all."""

    READ = 0
    WORKSPACE = 1
    _GIT = 2
    GIT = _GIT | WORKSPACE
    _ENVIRONMENT = 4
    ENVIRONMENT = _ENVIRONMENT | WORKSPACE
    NETWORK = 8
    HOME = 16
    OUTSIDE = 32

    @property
    def words(self) -> str:
        """Return what a question and a result say of it."""
        if SandboxProfile.OUTSIDE in self:
            return "outside of the sandbox: everything that you may do"
        writes = [
            words
            for flag, words in (
                (SandboxProfile.WORKSPACE, "the workspace (not what runs later)"),
                (SandboxProfile.GIT, ".git without hooks and configuration"),
                (SandboxProfile.ENVIRONMENT, "this Python's packages and their cache"),
            )
            if flag in self
        ]
        home = " and the home" if SandboxProfile.HOME in self else ""
        parts = [f"reads the workspace{home} without secrets"]
        parts.append(f"writes {', '.join(writes)}" if writes else "writes nothing")
        network = "uses the network, this machine's servers and 169.254.169.254 too"
        parts.append(network if SandboxProfile.NETWORK in self else "no network")
        return f"in a sandbox: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Level:
    """The best level here; `why` says why it is not better."""

    name: LevelName
    why: str = ""

    @property
    def holds(self) -> str:
        """Return what it keeps a command from."""
        match self.name:
            case "bubblewrap":
                return "a command sees and changes only what its question names"
            case "landlock":
                return (
                    "reading is confined in full; what may write is kept inside of the workspace, "
                    "whose secrets it can read; with network nothing is confined"
                )
            case "none":
                return "commands are not confined"

    def meets(self, required: str) -> bool:
        """Return whether it is as good as `required`: "", landlock or bubblewrap."""
        order = ("none", "landlock", "bubblewrap")
        return order.index(self.name) >= order.index(required or "none")

"""Permissions of commands, and the sandbox levels of a machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.errors import HermesError

LevelName = Literal["bubblewrap", "landlock", "none"]
"""Sandbox levels, from the strictest to none."""


class NoSandboxError(HermesError):
    """The command cannot be sandboxed as requested. The message states the reason."""


class Need(enum.Enum):
    """What a command needs beyond reading."""

    WRITE = "write"
    GIT = "git"
    ENVIRONMENT = "environment"
    NETWORK = "network"
    HOME = "home"
    CREDENTIALS = "credentials"  # runs without a sandbox
    LATER = "later"  # makes something run unattended later: needs approval in every mode


class SandboxProfile(enum.Flag):
    """A command's permissions, as combinable flags. All include reading the workspace."""

    READ = 0  # reads only
    WORKSPACE = 1
    _GIT = 2
    GIT = _GIT | WORKSPACE
    _ENVIRONMENT = 4
    ENVIRONMENT = _ENVIRONMENT | WORKSPACE
    NETWORK = 8
    HOME = 16
    OUTSIDE = 32  # no sandbox at all

    @property
    def words(self) -> str:
        """Return a description for approval prompts and results."""
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
        network = "uses the network, including this machine's servers and 169.254.169.254"
        parts.append(network if SandboxProfile.NETWORK in self else "no network")
        return f"in a sandbox: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Level:
    """The machine's best sandbox level."""

    name: LevelName
    """The level."""
    why: str = ""
    """The reason no better level works. Empty for bubblewrap."""

    @property
    def holds(self) -> str:
        """Return a description of the level's protection."""
        match self.name:
            case "bubblewrap":
                return "a command can read and change only what its question lists"
            case "landlock":
                return (
                    "commands that only read are fully confined; commands that write are "
                    "confined to the workspace, but can read its secrets; commands with network "
                    "access are not confined"
                )
            case "none":
                return "commands are not confined"

    def meets(self, required: str) -> bool:
        """Return whether the level is at least `required`: "", landlock or bubblewrap."""
        order = ("none", "landlock", "bubblewrap")
        return order.index(self.name) >= order.index(required or "none")

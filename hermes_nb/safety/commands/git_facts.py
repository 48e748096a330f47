"""Which git commands only read, and which of their options do more."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_nb.safety.commands.deeds import git_deed

_READS = frozenset(
    {
        *("status", "log", "diff", "show", "blame", "annotate", "shortlog", "describe", "grep"),
        *("rev-parse", "rev-list", "ls-files", "ls-tree", "cat-file", "merge-base", "name-rev"),
        *("count-objects", "whatchanged", "cherry", "check-ignore", "check-attr", "diff-tree"),
        *("diff-index", "diff-files", "for-each-ref", "show-ref", "range-diff", "version"),
        *("merge-tree", "show-branch", "verify-commit", "verify-tag", "var"),
    }
)
_BITES = re.compile(
    r"--ou|-O|--op|--ext|--textc|--exe|--upl|--rec|--conte|--filt|--untr|--no-in|--no-exc|-f$"
)
"""Options, as short as git takes them, that write a file, run a program that the repository's
configuration names, or read files that the repository does not hold."""
_LISTS = {
    "branch": re.compile(
        r"-[arvil]+|--(all|remotes|list|verbose|show-current|contains|no-contains|merged|no-merged"
        r"|sort=.*|format=.*|points-at|ignore-case|no-color|column)"
    ),
    "tag": re.compile(r"-l|-n\d*|--(list|contains|merged|no-merged|sort=.*|format=.*|points-at)"),
    "remote": re.compile(r"-v|--verbose"),
}
"""Commands that list as long as they are given nothing but these options."""
_VERBS = {
    "stash": ("list", "show"),
    "reflog": ("show",),
    "worktree": ("list",),
    "submodule": ("status",),
    "remote": ("get-url",),
    "config": ("--get", "--get-all", "get"),
    "notes": ("list", "show"),
    "bisect": ("log",),
    "lfs": ("ls-files", "status"),
}
_LISTING = frozenset({"-l", "--list", "--contains", "--merged", "--no-merged", "--points-at"})


def why_git_asks(arguments: Sequence[str]) -> str:
    """Return why `git ARGUMENTS` needs a question; "" if it only reads."""
    rest = _without_global_options(list(arguments))
    if rest is None:
        return "git is given a configuration of its own"
    if not rest:
        return ""
    verb, options = rest[0], rest[1:]
    if verb in ("--version", "--help"):
        return ""
    if bad := next(filter(_BITES.match, options), ""):
        return f"with {bad}, git {verb} does more than read"
    if verb in _READS or _only_lists(verb, options):
        return ""
    return git_deed(verb)


def _without_global_options(words: list[str]) -> list[str] | None:
    """Return the subcommand and what follows, None if an option before it could run something."""
    while words and words[0].startswith("-") and words[0] not in ("--version", "--help"):
        if words[0] == "-C":
            words = words[2:]
        elif words[0] in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
            words = words[1:]
        else:
            return None
    return words


def _only_lists(verb: str, options: Sequence[str]) -> bool:
    if options[:1] and options[0] in _VERBS.get(verb, ()):
        return True
    if verb == "reflog" and not options:
        return True
    if verb not in _LISTS:
        return False
    named = [option for option in options if not option.startswith("-")]
    plain = all(_LISTS[verb].fullmatch(option) for option in options if option.startswith("-"))
    return plain and (not named or (bool(set(options) & _LISTING) and verb != "remote"))

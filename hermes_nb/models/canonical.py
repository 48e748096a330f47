"""Convert requests to a form that is identical in every run of a notebook, and compute their keys.

A recorded reply is found by its request's key. The key covers the user's messages, tool results,
the names and arguments of calls, image digests and the project context. It ignores Hermes's own
guidance, tool descriptions and schemas, the model name, call ids, reply texts, reasoning, secrets,
and values masked by `volatile`. Messages form a chain of digests, each computed from its message
and the previous digest, so that a growing conversation shares its earlier links.

Recordings store the texts of tool results as worded by the version that made them. If you change
such a wording, add a rule to `REWORDED` that maps the old and the new one to the same text, or the
two wordings to `WORDINGS` if they have no variable parts.
`GUIDANCE` removes Hermes's own guidance from user messages, recognised by its first words. Both
apply to recorded and to current requests. All patterns run in linear time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hermes_nb.core.json_values import canonical_json, clean, clean_text
from hermes_nb.core.messages import Image, Json, Memo, Message, Part, ToolCall, given_id
from hermes_nb.core.protocols import Request
from hermes_nb.models.volatile import (
    CELL_ID,
    EVERYWHERE,
    RESULTS,
    SPOKEN,
    SYSTEM,
    Named,
    Places,
    VolatileRule,
    masked,
)
from hermes_nb.safety.redact import STUB, redact

Table = Sequence[tuple[str, str]]

CONTEXT = "[Notebook context]"
"""First line of the context that the notebook adds to the user's message."""
_ZONE = r"(?:UTC|GMT|[A-Z]{2,4}T|[+-]\d\d(?::?\d\d)?)"
_WISHES = r"(?=\n\n(?:Give most of the room to this: |Keep this too:\n)|\Z)"
GUIDANCE: Table = (
    (r"(?s)\A\[Review\] .*", "<review>"),
    (r"(?s)\AYour reply was empty\. .*", "<nudge>"),
    (r"(?s)\AThe budget of [^\n]{1,80} is used up, .*", "<budget>"),
    (r"(?s)\A\[Earlier conversation.*", "<compressed>"),
    (rf"(?s)\APause here\. The conversation above is about to be shortened.*?{_WISHES}", "<pause>"),
    (r"\AThe summary so far follows\.[^\n]*\n(?=<summary>)", ""),
    (r"(?m)^The transcript[^\n]{0,40}:\n(?=<transcript>)", ""),
    (rf"(?s)(?<=</transcript>)\n\nWrite the summary.*?{_WISHES}", ""),
    (r"\A(\[From memory \([^)\n]*\)):[^\n]*", r"\1"),
)
REWORDED: Table = (
    (
        r" uses nbformat (\d+); the newest supported version is (\d+)",
        r" has nbformat \1, newer than the \2 understood here",
    ),
    (
        r"the arguments have ([\d,]+) characters, but at most ([\d,]+) are allowed",
        r"the arguments have \1 characters, and it takes \2 at most",
    ),
    (r" in a copy; the (\w+) skill is unchanged", r" in a copy; the \1 one stays"),
    (r"\bhas ([\d,]+) characters; the limit is ([\d,]+)", r"has \1 characters, \2 is the limit"),
    (
        r" would have ([\d,]+) bytes; the limit is " r"([\d,]+)",
        r" would have \1 bytes; \2 is the limit",
    ),
    (
        r"\ba folder ('[^'\n]{1,200}') already exists; choose another name",
        r"\1 is there already as a folder; choose another name",
    ),
    (r"(?m)^\[stopped after (?=\d[\d.]* \w?B of output)", "[ended after "),
    (r"(?m)(, |; )changes to ([^\]\n]{1,500}) were reverted", r"\1changes of \2 were taken back"),
    (r" is protected and cannot be (read|written): ", r" may not be \1, it is protected: "),
    (r"\bthe host ('[^'\n]{1,100}') was not found", r"there is no host \1"),
    (
        r"the tool output of this turn has reached its limit of ([\d,]+ characters)",
        r"the \1 that a turn's tool output may have are used up",
    ),
    (r"(<untrusted-<nonce> [^>\n]*>\n)Data, not instructions[^\n]*\n", r"\1"),
    (r"(?m)^((?:RESULT write_file: )?)(?:created|replaced) ([^\n]* lines, )", r"\1wrote \2"),
    # The directory of a command and the files hidden from it depend on the machine.
    (
        r"(?m)^(\[(?:exit|timed out|ended)[^\n]{0,200}?), in a sandbox: "
        r"(?:(?!, changes of |, the user kept |\]$)[^\n])*",
        r"\1",
    ),
    # The remaining lines of a shortened result depend on the version of hermes_nb.
    (r"\A(\[shortened(?: #\d+)?\] [^\n]*)(?:\n· [^\n]*)*\Z", r"\1"),
    # A shortened skill says how to load it again, not where it is stored.
    (
        r"\A(\[shortened(?: #\d+)?\] skill_view [^\n]*); (?:session_search around=\d+|"
        r"context_expand\('s\d+'\)|gone from view|skill_view\([^\n]*\))\Z",
        r"\1",
    ),
    # A cassette grows while it is recorded, and a notebook changes when it is saved. So both are
    # removed from listings, sizes, search results and counts.
    (r"(?m)^[^\n]*\.hermes\.jsonl(?:\.lock)?(?:  \d[^\n]*|[:-]\d[^\n]*)?(?:\n|\Z)", ""),
    (r"(?m)^([^\n]*\.ipynb)  \d[^\n]*$", r"\1"),
    (r"(?m)^[^\n]*\.ipynb(?::\d+:|-\d+-)[^\n]*(?:\n|\Z)", ""),
    (r"(?m)^(?:--|\(empty\)|no files match|no matches for [^\n]* files)(?:\n|\Z)", ""),
    (r"(?m)^(?: *\.ipynb_checkpoints/|\[not shown: [^\n]*\])(?:\n|\Z)", ""),
    (r"(?m)^\[(?:at least )?[\d,]+ more (?:matches|files);[^\n]*\](?:\n|\Z)", ""),
    (rf"<time> {_ZONE}(?![\w:])(?: \d{{4}}(?!\d))?", "<time>"),
    # The reason why no one could approve is worded differently in each version.
    (
        r"(the user declined: )(?:nobody can be asked|no one can approve calls) here[^\n]*",
        r"\1nobody can be asked here",
    ),
    (r" occurs (\d+) times, at lines (?=\d)", r" is there \1 times, at lines "),
    (
        r"(a sandbox of )level (\w+ is required, )but only (\w+) is available",
        r"\1the level \2and there is \3",
    ),
    # The reason a command cannot be confined depends on the machine.
    (r"(?m)^(the command was not run: )[^\n]{1,500}(; ask the user to approve it)$", r"\1\2"),
    (
        r" is a link out of the Hermes directory, to ([^\n]{1,500}); replace it with a file",
        r" leads out of the home directory, to \1; put a file there instead of a link",
    ),
    (r"a skill of the same name in (\w+) takes precedence", r"one of that name in \1 comes first"),
    (
        r"it replaces the (\w+) (\S{1,99}), which is available",
        r"it stands in for the \1 \2, which is there",
    ),
    # The schema of a tool that was called with invalid arguments.
    (r"(?m)( was not run: [^\n]{0,999}\. Expected )\w{1,64}\([^\n]{0,9999}\)$", r"\1"),
    # The count of a table's remaining columns was wrong.
    (r"(?m)^(  …) -?[\d,]+ more$", r"\1 more"),
    # The remaining frames and source lines of a traceback depend on the version.
    (
        r"(?m)^(?:Cell In\[\d+\], line \d+|File \"[^\"\n]+\", line \d+|File \S+:\d+, in )"
        r"[^\n]*(?:\n|\Z)"
        r"(?:(?:[ \t]+\d+(?:[ \t][^\n]*)?|-+> ?\d+[^\n]*|[ \t]{4}[^\n]*)(?:\n|\Z))*",
        "",
    ),
    (
        r"(?m)^[^\n]*\n(?:The above exception was|During handling of the above)[^\n]*:\n"
        r"[^\n]*Traceback \(most recent call last\):?(?:\n|\Z)",
        "",
    ),
    (r"(?m)^\[\.\.\. (?:at least )?\d+ frames? left out \.\.\.\](?:\n|\Z)", ""),
    # What is known of stale cells, and of a notebook's outputs in a fresh kernel.
    (r"(?m)^\[(?:stale cells|outputs in a fresh kernel): [^\n]*\](?:\n|\Z)", ""),
    # The variables that code changed are known more exactly than before.
    (
        r"(?m)^((?:RESULT run_python: )?)(?:\[(?:new|changed) [^\n]*\]|\(no output\))(?:\n|\Z)",
        r"\1",
    ),
)
WORDINGS: Table = (
    ("were truncated when they were read", "were cut when they were read"),
    ("; add surrounding lines", "; add what is around it"),
    (", which contains:\n", ", which holds:\n"),
    ("the notebook cannot be reached", "the notebook is out of reach"),
    (". It was not changed; ask", ". It was not touched; ask"),
    ("cell; only code cells can be run", "cell; only code cells run"),
    ("is not installed, so python3 was used)", "is not installed, so python3 took its place)"),
    ("; start threads with `threading.Thread`", "; start threads by `threading.Thread`"),
    (
        "no open page of this notebook responds; reload",
        "no open page of this notebook answers; reload",
    ),
    ("(%hermes doctor shows details)", "(%hermes doctor says more)"),
    (" has a different version from the package", " speaks another version than the package"),
    ("skills_list lists all skills", "skills_list shows what there is"),
    ("a link that points outside its directory", "a link that leads out of its directory"),
    ("it contains NUL characters", "it holds NUL characters"),
    ("with quotes around values that contain `: `", "with quotes around what holds `: `"),
    (", but the skill is called ", ", and the skill is "),
    ("there is no text after the frontmatter", "there is nothing below the frontmatter"),
    ("the frontmatter contains more than one", "the frontmatter holds more than one"),
    (
        "there is no Hermes directory for skills, so nothing can be written",
        "there is no home directory for skills; nothing can be written",
    ),
    (" bytes, so it cannot be copied", " bytes; it is not copied"),
    (
        " skills and cannot be deleted; the user can turn it off",
        " skills and is not deleted; the user can switch it off",
    ),
    ("; undo restores it", "; undo brings it back"),
    ("`name` is missing; give the name of the skill", "which skill? give its `name`"),
    ("has changed since you viewed it; view it again", "has been changed since; look at it again"),
    (" has been created again; delete the new one first", " is there again; delete that one first"),
    (
        "has been changed by hand since; undo it by hand",
        "was changed by other means since; undo it by hand",
    ),
    (" through a link and was not changed", " through a link; not touched"),
    (
        " is turned off; only the user can turn it on",
        " is switched off; only the user can switch it on",
    ),
    (" in the environment, but that is not set", " in the environment, where that is not set"),
    (": tell the user before you follow it", ": say so before you follow it"),
    (" skills, which other people wrote", " skills, which nobody here wrote"),
    (" bytes; its path is ", " bytes; it lies at "),
    ("give a path under ", "give a path below "),
    (
        "is a link that points outside the skill; it is not followed",
        "is a link that leads out of the skill; it is not followed",
    ),
    ("in this skill; available: ", "in this skill; there is "),
    (" (it contained ", " (it held "),
    (
        "so it was not changed; the user has to shorten it",
        "and was left alone; the user has to shorten it",
    ),
    (" has already been undone", " has been undone already"),
    (" already exists; nothing was undone", " is there already; nothing was undone"),
    ("that no other entry contains", "that no other entry holds"),
    (" entries contain '", " entries hold '"),
    ("no entry contains '", "no entry holds '"),
    ("; the entries are:\n", "; these are there:\n"),
    (" characters, but the limit is ", " characters, the limit is "),
    (
        "it contains what looks like a secret; note where the secret is stored instead",
        "it holds what looks like a secret; note where the secret is kept instead",
    ),
    (
        "it holds what looks like a secret; say where the secret is kept instead",
        "it holds what looks like a secret; note where the secret is kept instead",
    ),
    (
        "nothing in past sessions matches; try other words, or browse without a query",
        "nothing in past sessions fits; other words may, or browse without a query",
    ),
    ("not condensed: the model returned nothing", "not condensed: the model had nothing to say"),
    (
        "is locked by another process; Hermes will try again later",
        "is locked by another process; it is tried again later",
    ),
    ("is locked: another process is writing to it", "is locked: other processes write to it"),
    ("no message that is out of view matches ", "nothing that left the view fits "),
    (") shows more]", ") goes on]"),
    (
        "; use an id that appears in the conversation",
        "; use an id as it stands in the conversation",
    ),
    ("the arguments are not an object;", "the arguments are no object;"),
    (
        "nothing was run, call again with the complete arguments",
        "nothing was run, call again with all of it",
    ),
    (
        "two of the tasks are identical; list each task only once",
        "two of the tasks are the same; give each once",
    ),
    ("child agents cannot use ", "children cannot have "),
    ("; they can use ", "; they can have "),
    ("it did not finish within ", "it had not ended after "),
    ('source="reports of child agents"', 'source="what child agents report"'),
    ("[text of an attachment, ", "[text of what came with it, "),
    ("which may contain keys", "which may hold keys"),
    ("infrastructure secrets", "secrets of an infrastructure"),
    ("a command history, which may contain passwords", "what was typed, passwords among it"),
    (": a VPN key", ": a key of a private network"),
    ("a server's cookie key", "the key of a server's cookies"),
    ("git's internal files, including hooks", "git's own files, hooks among them"),
    (
        "internal files of a version control system, including hooks",
        ("another version control's own files, hooks among them"),
    ),
    (
        "the Hermes directory; only Hermes's own tools change it",
        "the home of Hermes; its own tools change that",
    ),
    ("a hard link to a secret file", "a second name of a secret file"),
    (
        "a hard link to a file that could not be identified",
        "a second name of a file that could not be looked for",
    ),
    (": not a regular file", ": no ordinary file"),
    (
        "a file in your home directory that programs run or obey",
        "a file of the home directory that programs run or obey",
    ),
    ("internal data of a process", "the inside of a process"),
    ("it is a fork bomb", "it forks without end"),
    ("it destroys the data on a disk", "it destroys what a disk holds"),
    ("it shuts the machine down", "it ends the machine"),
    ("no sandbox is available: ", "there is no sandbox here: "),
    ("; the user is in the", "; the user is in the"),
    (
        "No one is available to answer. Decide with what you know, and state your "
        "assumptions at the end.",
        "Nobody is there to answer. Decide by what you know, and say in the end what you assumed.",
    ),
    (
        "The user chose not to answer. Continue without the answer, or leave the question open.",
        "The user did not want to answer. Go on without it, or leave it open.",
    ),
    (
        "or more; the tool reads PNG, JPEG and GIF images of at most ",
        "or more; a picture is a PNG, JPEG or GIF of at most ",
    ),
    ("no one was available to answer", "nobody was there to answer"),
    (
        " changed each time while the question was open",
        " changed each time while the user was asked",
    ),
    ("; continue with offset=", "; go on with offset="),
    ("[truncated after ", "[cut after "),
    (
        " has just been changed by another program; read it again",
        " was changed by somebody else just now; read it again",
    ),
    ("; only regular files can be written", "; only regular files are written"),
    (
        "is write-protected; ask the user, or choose another file",
        "is write-protected; ask the user, or choose another",
    ),
    ("a pattern must be one line of at most ", "a pattern is one line of at most "),
    (" characters, because lines are searched one by one", " characters; search is by line"),
    (" is not a valid regular expression: ", " is no regular expression: "),
    (" cannot be used (", " is not clear ("),
    ("not condensed: no model is available", "not condensed: no model for it"),
    ("no skill matches ", "no skill fits "),
    (
        " could not be checked or restored; review it before you use it",
        " could not be checked or put back: look at it before you use it",
    ),
    ("the user kept the changes to ", "the user kept the changes of "),
    (", its background processes were stopped", ", what it left running was ended"),
    (" s and was stopped", " s and was ended"),
    (
        "neither bash nor sh is available on this machine; use Python instead",
        "there is neither bash nor sh on this machine; use Python instead",
    ),
    (
        "the command contains a NUL character; remove it",
        "the command has a NUL character in it; leave it out",
    ),
    (" is a file; `workdir` must be a directory", " is a file; `workdir` is a directory"),
    (" responded with status ", " answered with status "),
    ("it took longer than ", "it took more than "),
    (", not text", ", no text"),
    (
        "the search endpoint's response has no `results`; tell the user",
        "the search endpoint's answer has no `results`; tell the user",
    ),
    ("; choose another location", "; choose another place"),
    ("its symbolic links form a loop", "its symbolic links lead in a circle"),
    ('source="output of code in the kernel"', 'source="what code in the kernel shows"'),
    ('source="output of a command"', 'source="what a command prints"'),
    ('source="response from a server"', 'source="what a server answers"'),
    ("give at least one task", "what is to be done? give a goal, or tasks"),
    ("`old` is missing; give a part of the entry", "old_text is missing; give a part of the entry"),
    ("has action, content and old; got", "has action, content and old_text; got"),
    ("`old`", "`old_string`"),
    ("`new`", "`new_string`"),
    (" is not a URL; give one that ", " is no address; give one that "),
    ("/robots.txt is not a URL", "/robots.txt is no address"),
    (
        ", which is not a public internet address, so it was not read. Tell the user, who can "
        "allow it for web_fetch with the setting `web.private`",
        ", which is no address of the public internet, and is not read. Tell the user, who may "
        "allow it for web_fetch by `web.private`",
    ),
    ("the search endpoint did not return JSON;", "the search endpoint's answer is no JSON;"),
    (" does not allow agents at ", " does not want agents at "),
    (
        " was sent compressed, which was not requested",
        " comes packed, though that was not asked for",
    ),
    (
        ". Do not try the same thing in another way; continue without it",
        ". Do not try the same another way; go on without it",
    ),
    ("; write the long part to a file with", "; put what is long into a file with"),
    (" is not a valid category; use a word", " is no category; use a word"),
    (" is not a valid skill name; use a-z", " is no name for a skill; use a-z"),
    ("the frontmatter is not valid YAML", "the frontmatter is no valid YAML"),
    (
        "`---` appears inside the frontmatter, where simple parsers take it for the end",
        "`---` stands inside the frontmatter, where simple readers take it for its end",
    ),
    ("there is text before the frontmatter", "something stands before the frontmatter"),
    (" is not a file of a skill; give a path", " is no file of a skill; give a path"),
    (
        "nothing was changed: the entries already have this text",
        "nothing was changed: it already stands like that",
    ),
    (". The file had been edited by someone else", ". The file had been edited by somebody else"),
    ("; nothing was changed, continue without it", "; nothing was changed, go on without it"),
    (" was not found, nor anything similar; ", " is not there, nor anything like it; "),
    (" shows the current text", " shows what is"),
    (" was not found: it contains the line numbers", " is not there: it carries the line numbers"),
    (" was not found. The nearest passage (", " is not there. The nearest passage ("),
    (
        " has changed since you read it, so it was not edited; it now contains:\n",
        " was changed since it was read, and was left as it is; it now holds:\n",
    ),
    (
        " has changed since you last read it, so nothing was edited. It now contains:\n",
        " is not as you last saw it, so nothing was changed. It holds now:\n",
    ),
    (
        " contains a Hermes prompt, so it cannot run during a turn",
        " asks the agent itself; it cannot run inside of a turn",
    ),
    (
        "not saved yet: the user's approval is pending, as number ",
        "not saved yet: it waits for the user's approval as number ",
    ),
    (" is itself pending the user's approval, as ", " itself waits for the user's approval, as "),
    ("; it cannot be changed until it is approved", "; it cannot be changed before"),
    ("the same change is already pending, as ", "that waits for the user's approval already, as "),
    (
        "the user has already rejected the same change; do not propose it again",
        "the user has refused just that before; leave it",
    ),
    (
        " changes are pending the user's approval; no more can be added before some are decided",
        " things wait for the user's approval, and there is no room for more before they are "
        "decided on",
    ),
    (
        "a file of the home directory that programs run or obey",
        "a file of the home, where programs look for what they obey",
    ),
    (
        "a new hidden file or folder, which programs may run or obey",
        "a new hidden file or folder, where programs look for what they obey",
    ),
    ("it is not a regular file", "it is no regular file"),
    (" could not be written completely", " could not be written in full"),
    (" is locked by another process; it is tried", " is held by another process; it is tried"),
    (": it returned no answer", ": it gave no answer"),
    (
        "it is sent to an MCP server, a third-party program, and approvals",
        "it is sent to an MCP server, a program of somebody else's, and approvals",
    ),
    (
        "the network was not used: the conversation contains untrusted content",
        "the network was not used: the conversation holds text from outside",
    ),
    (
        "the network was not used: this code was defined while the conversation contained "
        "untrusted content; define it again in a cell of your own",
        "the network was not used: this code was made while the conversation held text from "
        "outside; make it again in a cell of yours",
    ),
)
"""Sentences of results: the current wording, and the one that recordings are keyed by."""
_SET = re.compile(r"\{('[^'\n]{0,200}'(?:, '[^'\n]{0,200}'){1,200})\}")
_NOTED = re.compile(r"(characters left out[^\n]{0,200}?); in it: [^\n]{0,700}? …\](?=\n|\Z)")
_FLUSHED = re.compile(r"\A(?:USER|ASSISTANT|CALL|RESULT)\b[^\n]*: ")
_PROJECT = re.compile(r"(?s)(?:\A|\n)# Project Context\n\n[^\n]*\n\n(.*?)(?=\n\nDate: |\Z)")


def counted(said: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return the part of a message's canonical form that the key covers, or None.

    For the system prompt, this is the project context. For a reply, it is the names and arguments
    of its calls, since its text came from the recording.
    """
    role, parts = said.get("role"), said.get("parts")
    texts = parts if isinstance(parts, list) else []
    if role == "system":
        found = [match[1] for text in texts if (match := _PROJECT.search(str(text)))]
        return {"project": found} if found else None
    kept = {name: _unnoted(value) for name, value in said.items() if name != "parts"}
    if role != "assistant":
        kept["parts"] = [_counted(text, str(role)) for text in texts]
    return kept


def is_guidance(text: str) -> bool:
    """Return whether a user message is Hermes's own: a nudge, review or request for a summary."""
    return any(re.search(pattern, text) for pattern, _ in GUIDANCE)


def _unnoted(value: Json) -> Json:
    """Return calls without the lines that a compression added to arguments it had shortened."""
    match value:
        case str():
            return _NOTED.sub(r"\1 …]", value)
        case dict():
            return {key: _unnoted(item) for key, item in value.items()}
        case list():
            return [_unnoted(item) for item in value]
        case _:
            return value


def _counted(text: Json, role: str) -> Json:
    """Return the part of a content part that the key covers; an image is already a digest."""
    if not isinstance(text, str):
        return text
    if role == "user":
        for pattern, instead in GUIDANCE:
            text = re.sub(pattern, instead, text)
        flushed = _FLUSHED.match(text) is not None
        if not (flushed or text.startswith(CONTEXT) or "<transcript>\n" in text):
            return text
        if flushed:  # recorded without masking its times
            text = masked(text, RESULTS).text
    for pattern, instead in REWORDED:
        text = re.sub(pattern, instead, text)
    for now, then in WORDINGS:
        text = text.replace(now, then)
    # Sort a set of strings, because its order differs between processes.
    return _SET.sub(lambda m: "{" + ", ".join(sorted(m[1].split(", "))) + "}", text).rstrip()


FORM = 10
"""Version of the key format.

Increment it with every new rule above. Form 1 covered every word and the tools' schemas. For
recordings with an earlier form, the key is computed again from their stored messages.
"""
_ELSEWHERE = re.compile(
    r"(?ms)^Notebook: [^\n]*\n?|^Cells above(?:(?: this|,)[^\n]*)?:(?:\n.*| no changes)\Z"
)
"""The notebook's path and the cells above, both unknown in a run without a browser."""
_FAILED_IN = re.compile(r"(?m)^(The last cell failed) \(cell [^)\n]*\):$")
_TRANSCRIPT = re.compile(r"(?im)^(?:<summary>|<transcript>|transcript:)[ \t]*$")
COMPRESSED = "[Earlier conversation"
"""Start of the message that replaces compressed messages; it quotes tool results."""

Normaliser = Callable[[str], str]
"""Removes a user's own volatile values: `lambda t: re.sub("run-[0-9]+", "run", t)`."""


@dataclass(frozen=True, slots=True)
class Link:
    """One message in the digest chain."""

    digest: str
    """Digest of this message and all before it."""
    before: str
    """The previous link's digest; "" for the first message."""
    said: Mapping[str, Json]
    """The canonical form of the message."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """A request's canonical form."""

    key: str
    """SHA-256 of the covered content, including which masked names are identical."""
    said: str
    """Digest of the covered content alone."""
    links: tuple[Link, ...]
    """The digest chain, one link per message."""
    tools: frozenset[str]
    """Names of the offered tools."""
    choice: str
    """The request's `tool_choice`."""
    named: Named = field(repr=False)
    """The numbered names that occur in the request: cells, sessions, files."""

    @property
    def head(self) -> str:
        """The digest of the whole conversation."""
        return self.links[-1].digest if self.links else ""


@dataclass(frozen=True, slots=True)
class _Said:
    """One message apart from its conversation: its canonical form and the names in it."""

    form: Mapping[str, Json]
    """The canonical form of the message."""
    named: tuple[tuple[str, str], ...]
    """(rule, value) pairs of all names in it, in order."""
    digest: str
    """Digest of `form`."""
    counted: str
    """Digest of the covered part; "" if the key covers none of it."""
    heard: tuple[tuple[str, str], ...]
    """(rule, value) pairs of the names in the covered part."""


class Canon:
    """Makes requests canonical and caches the result for each message.

    Args:
        places: Returns this run's directories; called for each request.
        personal: Returns the system prompt layers that belong to the user and are ignored; called
            for each request.
        normalisers: Functions applied to every text, after all other rules.
    """

    def __init__(
        self,
        *,
        places: Callable[[], Places] = Places.here,
        personal: Callable[[], Sequence[str]] = tuple,
        normalisers: Sequence[Normaliser] = (),
    ) -> None:
        self._places = places
        self._personal = personal
        self._normalisers = normalisers
        self._seen: Memo[_Said] = Memo()

    def __call__(self, request: Request) -> Canonical:
        places = self._places()
        personal = tuple(text for text in self._personal() if text)
        detached = not len(request.tools)
        named, heard = Named(places), Named()
        links: list[Link] = []
        counts: list[tuple[str, list[int], list[int]]] = []
        before = ""
        calls: dict[str, int] = {}
        variant = tuple(places.names), personal, detached, len(self._normalisers)
        for message in request.messages:
            reader = _MessageReader(places, personal, self._normalisers, detached)
            said = self._seen.get(message, partial(reader.said, message), variant)
            numbers = [named.number(said.named), _numbered(message, calls)]
            before = digest_of([before, said.digest, *numbers])
            links.append(Link(before, links[-1].digest if links else "", said.form))
            if said.counted:
                counts.append((said.counted, heard.number(said.heard), numbers[1]))
        return Canonical(
            key=_sha([FORM, counts]),
            said=digest_of([digest for digest, *_ in counts]),
            links=tuple(links),
            tools=frozenset(tool.name for tool in request.tools),
            choice=request.tool_choice,
            named=named,
        )


@dataclass(slots=True)
class _MessageReader:
    """Processes one message on its own, collecting the names in it in `named`, in order."""

    places: Places
    personal: Sequence[str]
    normalisers: Sequence[Normaliser]
    detached: bool
    named: list[tuple[str, str]] = field(default_factory=list)

    def said(self, message: Message) -> _Said:
        parts = [self._part(part, message.role, at) for at, part in enumerate(message.parts)]
        form: dict[str, Json] = {"role": message.role}
        if parts := [part for part in parts if part != ""]:
            form["parts"] = parts
        spoken = len(self.named)
        if message.calls:
            form["calls"] = [self._call(call) for call in message.calls]
        if message.role == "tool":
            form["name"] = clean_text(message.name)
        for flag in ("failed", "interrupted"):
            if getattr(message, flag):
                form[flag] = True
        named = tuple(self.named)
        heard = named[{"system": len(named), "assistant": spoken}.get(message.role, 0) :]
        return _Said(form, named, digest_of(form), counted_digest(form), heard)

    def _part(self, part: Part, role: str, at: int) -> Json:
        if isinstance(part, Image):
            return {"image": hashlib.sha256(part.data.encode()).hexdigest()[:32], "mime": part.mime}
        if role == "system":
            return self._masked(redact(clean_text(without(part.text, self.personal))), SYSTEM)
        text = redact(clean_text(part.text))
        if role == "tool" or (at == 0 and text.startswith(COMPRESSED)):
            return self._masked(text, RESULTS)
        if role == "assistant":
            return self._masked(text, SPOKEN)
        if at and text.startswith(CONTEXT):
            text = _FAILED_IN.sub(r"\1:", _ELSEWHERE.sub("", text)).rstrip()
            # If only the location remains, the context is empty, as in a run without a location.
            return "" if text == CONTEXT else self._masked(text, RESULTS)
        start = _TRANSCRIPT.search(text) if self.detached else None
        if start is None:
            return self._masked(text, EVERYWHERE)
        head = self._masked(text[: start.start()], EVERYWHERE)
        return head + self._masked(text[start.start() :], RESULTS)

    def _call(self, call: ToolCall) -> Json:
        name = clean_text(call.name)
        if call.problem:
            text = self._masked(redact(clean_text(call.text)), SPOKEN)
            return {"name": name, "text": text, "problem": True}
        return {"name": name, "arguments": self._value(redacted(clean(call.arguments)))}

    def _value(self, value: Json) -> Json:
        match value:
            case str() if CELL_ID.fullmatch(value):
                self.named.append(("cell", value))
                return "<cell>"
            case str():
                return self._masked(value, SPOKEN)
            case dict():
                # Sorted, so that the model's key order does not affect the numbering of names.
                return {key: self._value(value[key]) for key in sorted(value)}
            case list():
                return [self._value(item) for item in value]
            case _:
                return value

    def _masked(self, text: str, rules: Sequence[VolatileRule]) -> str:
        found = masked(text, rules, self.places)
        self.named.extend(found.named)
        text = found.text
        for normalise in self.normalisers:
            text = normalise(text)
        return text


def counted_digest(said: Mapping[str, Json]) -> str:
    """Return the digest of the covered part of a message's form, or ""."""
    counts = counted(said)
    return "" if counts is None else digest_of(counts)


def without(text: str, layers: Sequence[str]) -> str:
    """Return a system prompt without the given layers, which are separated by blank lines."""
    for layer in layers:
        for piece in (f"{layer}\n\n", f"\n\n{layer}"):
            if piece in text:
                text = text.replace(piece, "", 1)
                break
    return text


def redacted(value: Json, name: str = "") -> Json:
    """Return a JSON value with secrets masked; the key `name` may mark the value as a secret."""
    match value:
        case str():
            bare = redact(value)
            if bare == value and name and redact(f'"{name}": "{value}"') != f'"{name}": "{value}"':
                return STUB
            return bare
        case dict():
            return {redact(key): redacted(item, key) for key, item in value.items()}
        case list():
            return [redacted(item, name) for item in value]
        case _:
            return value


def _numbered(message: Message, calls: dict[str, int]) -> list[int]:
    """Return the numbers of a message's calls, or of the call it answers: ids vary between runs."""
    if message.role == "tool":
        return [calls.get(given_id(message.call_id), 0)]
    ids = [given_id(call.id) for call in message.calls]
    for each in ids:
        calls.setdefault(each, len(calls) + 1)
    return [calls[each] for each in ids]


def digest_of(value: object) -> str:
    """Return a short digest of a JSON value."""
    return _sha(value)[:32]


def _sha(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()

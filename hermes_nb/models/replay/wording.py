"""What counts of a message when a replay looks for its recording: what was said, in one wording.

The texts of tools' results are a format, since recordings hold them as their version wrote them:
who changes one adds a rule to `RESULTS` that makes the old and the new wording one. Our own
guidance in the user's name is no part of the story: `GUIDANCE` takes it out, told by how it
begins. Both are applied to what was recorded and to what is asked now. All take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hermes_nb.models.replay import volatile

Table = Sequence[tuple[str, str]]

CONTEXT = "[Notebook context]"
"""The line that begins what the notebook adds to the user's message."""
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
RESULTS: Table = (
    (r"(<untrusted-<nonce> [^>\n]*>\n)Data, not instructions[^\n]*\n", r"\1"),
    (r"(?m)^((?:RESULT write_file: )?)(?:created|replaced) ([^\n]* lines, )", r"\1wrote \2"),
    # A cassette grows while it is recorded, a notebook whenever it is saved: they are neither
    # listed, measured, searched nor counted.
    (r"(?m)^[^\n]*\.hermes\.jsonl(?:\.lock)?(?:  \d[^\n]*|[:-]\d[^\n]*)?(?:\n|\Z)", ""),
    (r"(?m)^([^\n]*\.ipynb)  \d[^\n]*$", r"\1"),
    (r"(?m)^[^\n]*\.ipynb(?::\d+:|-\d+-)[^\n]*(?:\n|\Z)", ""),
    (r"(?m)^(?:--|\(empty\)|no files match|no matches for [^\n]* files)(?:\n|\Z)", ""),
    (r"(?m)^(?: *\.ipynb_checkpoints/|\[not shown: [^\n]*\])(?:\n|\Z)", ""),
    (r"(?m)^\[(?:at least )?[\d,]+ more (?:matches|files);[^\n]*\](?:\n|\Z)", ""),
    (rf"<time> {_ZONE}(?![\w:])(?: \d{{4}}(?!\d))?", "<time>"),
)
_SET = re.compile(r"\{('[^'\n]{0,200}'(?:, '[^'\n]{0,200}'){1,200})\}")
_FLUSHED = re.compile(r"\A(?:USER|ASSISTANT|CALL|RESULT)\b[^\n]*: ")
_PROJECT = re.compile(r"(?s)(?:\A|\n)# Project Context\n\n[^\n]*\n\n(.*?)(?=\n\nDate: |\Z)")


def counted(said: Mapping[str, object]) -> dict[str, object] | None:
    """Return what counts of a message's canonical form, None where nothing does.

    Of the system prompt that is the project's own context; of a reply its calls by name and
    arguments, as its text came from the recording.
    """
    role, parts = said.get("role"), said.get("parts")
    texts = parts if isinstance(parts, list) else []
    if role == "system":
        found = [match[1] for text in texts if (match := _PROJECT.search(str(text)))]
        return {"project": found} if found else None
    kept = {name: value for name, value in said.items() if name != "parts"}
    if role != "assistant":
        kept["parts"] = [_counted(text, str(role)) for text in texts]
    return kept


def _counted(text: object, role: str) -> object:
    """Return what counts of a part: of a text; a picture stands there as its digest."""
    if not isinstance(text, str):
        return text
    if role == "user":
        for pattern, instead in GUIDANCE:
            text = re.sub(pattern, instead, text)
        flushed = _FLUSHED.match(text) is not None
        if not (flushed or text.startswith(CONTEXT) or "<transcript>\n" in text):
            return text
        if flushed:  # it was recorded with all its times
            text = volatile.masked(text, volatile.RESULTS).text
    for pattern, instead in RESULTS:
        text = re.sub(pattern, instead, text)
    return _SET.sub(_in_order, text).rstrip()


def _in_order(match: re.Match[str]) -> str:
    """Return a set of texts sorted: its own order is that of the process."""
    return f"{{{', '.join(sorted(match[1].split(', ')))}}}"

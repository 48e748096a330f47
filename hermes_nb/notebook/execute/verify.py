"""Verify a notebook: run a copy in a fresh kernel and compare the outputs cell by cell.

Times, durations, addresses and temporary files are masked before texts are compared. Numbers may
differ by one unit of the last digit shown, or by a millionth. PNG images are compared by their
pixels. `%%hermes` cells are replayed from the notebook's cassette, so no model is asked.
"""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from pathlib import Path

from hermes_nb.core.messages import Json
from hermes_nb.core.text import number_of, one_line
from hermes_nb.models.cassette import SUFFIX, common_prefix, is_miss
from hermes_nb.models.volatile import RESULTS, masked
from hermes_nb.notebook.document.outputs import strip_ansi
from hermes_nb.notebook.execute.fresh_kernel import DENIED, CleanRun, copy_of
from hermes_nb.notebook.shell import LOADED
from hermes_nb.safety.guard import Mode
from hermes_nb.safety.redact import redact

UNCOMPARED = frozenset({"hermes-ignore-output", "nbval-ignore-output"})
"""Tags of cells whose outputs are not compared."""
PNG = b"\x89PNG\r\n\x1a\n"
_CLOSE = 1e-6
_SHOWN = 200
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")
_RATE = re.compile(r"\d[\d.]*\s?(?:it/s|s/it|[kMG]?B/s)|\d+:\d\d<(?:\d+:\d\d|\?)")
"""A progress bar's rate, and its elapsed and remaining time."""
_MOMENT = re.compile(r"\bdatetime\.(?:datetime|date|time)\([\d, ]+\)")
_ASSIGNED = re.compile(r"(?m)^[ \t]*([\w \t,]+?)\s*=(?!=)")
_RANDOM = re.compile(
    r"\brandom\b|\brandint\b|\brandn?\(|\bnormal\(|\bshuffle\(|\.sample\(|\bchoices?\(|\buuid[14]\("
    r"|\btrain_test_split\(|\bRandomForest|\bKMeans\("
)
_SEEDED = re.compile(r"\bseed\(|\bdefault_rng\(\s*\w|\brandom_state\s*=\s*\w|\bRandomState\(\s*\w")
_WRITES = re.compile(
    r"\.to_(?:csv|parquet|excel|json|sql|pickle|feather)\(|\bsavefig\(|\.write(?:_text|_bytes)?\("
    r"|\bopen\([^)\n]*['\"][wax]b?\+?['\"]|\.dump\(|\b(?:rmtree|unlink|remove|rename|mkdir)\("
)
_NETWORK = re.compile(
    r"https?://|ftp://|s3://|\b(?:requests|httpx|urllib|aiohttp|socket|boto3|gcsfs|smtplib)\b"
)
_SHELL = re.compile(r"(?m)^\s*(?:!|%%(?:bash|sh|script)\b)|\bsubprocess\b|\bos\.system\(")


_ITSELF = re.compile(r"(?m)^\s*%hermes\s+verify\b")
"""Matches a cell that verifies the notebook; it is not run again during verification."""


class Verdict(Enum):
    """How a cell's output compares with the one in the notebook."""

    SAME = "same"
    TIMES = "same except times and addresses"
    NUMBERS = "numbers differ in the last digit"
    DIFFERS = "differs"
    PICTURE = "plot differs"
    RANDOM = "random, no seed"
    FAILED = "failed"
    NOT_RUN = "not run"


PASSED = frozenset({Verdict.SAME, Verdict.TIMES, Verdict.NUMBERS, Verdict.NOT_RUN})
"""Verdicts of cells that a verified notebook may have."""


@dataclass(frozen=True, slots=True)
class CellCheck:
    """The result for one code cell."""

    cell: int
    """The cell's position among all cells, from 1."""
    verdict: Verdict
    """How its output compares."""
    note: str = ""
    """The error, or both outputs from the first difference; "" if there is nothing to add."""

    def __str__(self) -> str:
        return f"cell {self.cell}: {self.verdict.value}{f': {self.note}' if self.note else ''}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for a notebook."""

    checks: tuple[CellCheck, ...]
    """One for each code cell."""
    seconds: float
    """Duration of the run."""
    note: str = ""
    """Says that another kernel than the notebook's was used; "" otherwise."""
    stopped: str = ""
    """Where and why the run was stopped; "" if it reached the end."""

    @property
    def passed(self) -> bool:
        """Whether the run reached the end and every output agrees."""
        return not (self.stopped or self.failing)

    @property
    def failing(self) -> list[CellCheck]:
        """The checks that keep the notebook from passing."""
        return [check for check in self.checks if check.verdict not in PASSED]

    def __str__(self) -> str:
        """Return the result in one line."""
        counts = Counter(check.verdict for check in self.checks)
        parts = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]]
        text = "verified" if self.passed else "not verified"
        ran = f"{number_of(len(self.checks), 'code cell')} in a fresh kernel, {self.seconds:.1f} s"
        end = f"; {self.stopped}" if self.stopped else ""
        return f"{text}: {', '.join(parts) or 'nothing to compare'} ({ran}){self.note}{end}"


def outputs_line(checks: Sequence[CellCheck]) -> str:
    """Return a line for the model that compares outputs, cells by index from 0; "" without any."""
    counts = Counter(check.verdict for check in checks)
    if set(counts) <= {Verdict.NOT_RUN, Verdict.FAILED}:
        return ""
    parts = [", ".join(f"{counts[each]} {each.value}" for each in Verdict if counts[each])]
    parts += [
        str(replace(check, cell=check.cell - 1))
        for check in checks
        if check.verdict not in PASSED and check.verdict is not Verdict.FAILED
    ]
    return f"[outputs in a fresh kernel: {'; '.join(parts)}]"


async def clean_run(
    notebook: Mapping[str, Json],
    *,
    name: str,
    directory: Path,
    timeout: float,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Run a copy of a notebook in `directory` and describe the cells that failed or differ.

    It runs in a thread with its own event loop, because nbclient would replace our signal handlers,
    and its remaining tasks end with that loop. A `%%hermes` cell in the notebook is denied all
    approvals, so that agents cannot start each other, and does not join this notebook's session.
    Cancelling kills the kernel and its processes.

    Args:
        notebook: the notebook in nbformat 4; it is not changed.
        name: the notebook's name in the result.
        directory: the working directory.
        timeout: limit in seconds for the whole run.
        progress: called with a line for each cell.

    Raises:
        ToolError: the kernel is missing or did not start.
    """
    run = CleanRun(copy_of(notebook), directory, timeout, progress, DENIED)
    await run.wait()
    reached = run.at if run.ending else None
    line = outputs_line([*compare(notebook["cells"], run.notebook.cells, reached=reached)])
    return "\n".join(filter(None, (run.report(name), line)))


async def verify(
    notebook: Mapping[str, Json],
    *,
    directory: Path,
    allowed: Mode,
    cassette: Path | None = None,
    timeout: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Run a copy of a notebook in a fresh kernel and compare its outputs with the saved ones.

    Args:
        notebook: the notebook in nbformat 4, with outputs; it is not changed.
        directory: the working directory.
        allowed: highest approval mode of its `%%hermes` cells. The calls in a recording are real,
            and whoever wrote the notebook wrote them.
        cassette: recording for its `%%hermes` cells; without one, these cells are not run.
        timeout: limit in seconds for the whole run.
        progress: called with a line for each cell.

    Raises:
        ToolError: the kernel is missing or did not start.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-home-", ignore_cleanup_errors=True) as home:
        env = {
            "HERMES_HOME": home,  # empty: neither read nor change the user's memory
            "HERMES_NB_CEILING": allowed,
            "HERMES_NB_CASSETTE": "replay",
            "HERMES_NB_CASSETTE_FILE": str(cassette or Path(home, f"none{SUFFIX}")),
        }
        copy = copy_of(notebook)
        for cell in copy.cells:
            if _ITSELF.search(cell.source):
                cell.source = ""
        run = CleanRun(copy, directory, timeout, progress, env)
        await run.wait()
    cells: Sequence[Mapping[str, Json]] = notebook["cells"]
    reached = run.at if run.ending else len(cells)
    stopped = f"stopped at cell {run.at + 1}: {run.ending}" if run.ending else ""
    checks = compare(cells, run.notebook.cells, reached=reached)
    return Verification(tuple(checks), run.seconds, run.note, stopped)


def compare(
    before: Sequence[Mapping[str, Json]],
    after: Sequence[Mapping[str, Json]],
    *,
    reached: int | None = None,
) -> Iterator[CellCheck]:
    """Yield the check of each code cell; cells from position `reached` on were not run."""
    seeded, random = False, set[str]()
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if old["cell_type"] != "code":
            continue
        source = "".join(old["source"])
        seeded = seeded or bool(_SEEDED.search(source))
        by_chance = not seeded and bool(
            _RANDOM.search(source) or random.intersection(re.findall(r"\w+", source))
        )
        if by_chance:  # what is assigned here makes the cells that use it random, too
            random.update(re.findall(r"\w+", " ".join(_ASSIGNED.findall(source))))
        if reached is not None and at >= reached:
            yield CellCheck(at + 1, Verdict.NOT_RUN)
        else:
            yield _check(at + 1, old, new, random=by_chance)


def _check(
    number: int, old: Mapping[str, Json], new: Mapping[str, Json], *, random: bool
) -> CellCheck:
    tags = (old.get("metadata") or {}).get("tags", ())
    error = next((o for o in new["outputs"] if o["output_type"] == "error"), None)
    expected = "raises-exception" in tags or any(
        o["output_type"] == "error" for o in old.get("outputs", ())
    )
    if error is not None and is_miss(f"{error['evalue']} {error.get('traceback')}"):
        return CellCheck(number, Verdict.NOT_RUN, "asks a model")
    if error is not None and not expected:
        message = one_line(redact(strip_ansi(f"{error['ename']}: {error['evalue']}")), _SHOWN)
        return CellCheck(number, Verdict.FAILED, message)
    if UNCOMPARED.intersection(tags) or old.get("execution_count") is None:
        return CellCheck(number, Verdict.SAME if tags else Verdict.NOT_RUN)
    texts = [_text(cell["outputs"]) for cell in (old, new)]
    verdict = _of_texts(*texts)
    if verdict is Verdict.DIFFERS:
        at = max(0, common_prefix(*texts) - 20)
        sides = [one_line(redact(text[at : at + _SHOWN]), 80) or "(nothing)" for text in texts]
        return CellCheck(number, _or_random(verdict, random=random), f"{sides[0]} → {sides[1]}")
    if _images(old["outputs"]) != _images(new["outputs"]):
        return CellCheck(number, _or_random(Verdict.PICTURE, random=random))
    return CellCheck(number, verdict)


def _or_random(verdict: Verdict, *, random: bool) -> Verdict:
    return Verdict.RANDOM if random else verdict


def _of_texts(old: str, new: str) -> Verdict:
    if old == new:
        return Verdict.SAME
    old, new = (_RATE.sub("", _MOMENT.sub("", masked(text, RESULTS).text)) for text in (old, new))
    if old == new:
        return Verdict.TIMES
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return Verdict.DIFFERS
    pairs = zip_longest(_NUMBER.findall(old), _NUMBER.findall(new), fillvalue="")
    return Verdict.NUMBERS if all(_close(*pair) for pair in pairs) else Verdict.DIFFERS


def _close(old: str, new: str) -> bool:
    """Return whether two numbers differ by at most a unit of the last digit, or by a millionth.

    Integers must be equal: an integer is a count or a name.
    """
    if old == new:
        return True
    if not all(re.search(r"[.eE]", each) for each in (old, new)):
        return False
    unit = min(_unit(old), _unit(new))
    a, b = float(old), float(new)
    # A little more than a unit, because the subtraction rounds.
    return abs(a - b) <= unit * 1.001 or math.isclose(a, b, rel_tol=_CLOSE)


def _unit(number: str) -> float:
    """Return one unit of a number's last digit."""
    digits, _, exponent = number.lower().partition("e")
    places = len(digits.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - places))


def _text(outputs: Iterable[Mapping[str, Json]]) -> str:
    """Return a cell's text output; if a line was overwritten, only its last state."""
    pieces = []
    for output in outputs:
        if output["output_type"] == "stream":
            pieces.append("".join(output["text"]))
        elif output["output_type"] == "error":
            pieces.append(f"{output['ename']}: {output['evalue']}\n")
        else:
            data = output.get("data", {})
            pieces.append("".join(data.get("text/plain") or data.get("text/markdown") or "") + "\n")
    lines = strip_ansi("".join(pieces).replace(LOADED, "")).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip().rpartition("\r")[2] for line in lines).strip()


def _images(outputs: Iterable[Mapping[str, Json]]) -> list[str]:
    """Return a digest of each image: of a PNG's pixels, of anything else's bytes."""
    found = []
    for output in outputs:
        for mime, data in sorted((output.get("data") or {}).items()):
            if mime.startswith("image/"):
                text = data if isinstance(data, str) else "".join(data)
                found.append(hashlib.sha256(_pixels(mime, text)).hexdigest())
    return found


def _pixels(mime: str, text: str) -> bytes:
    """Return the chunks of a PNG that hold its pixels, without dates and versions."""
    import base64
    import binascii

    try:
        data = base64.b64decode(text) if mime == "image/png" else text.encode()
    except binascii.Error:
        return text.encode()
    if not data.startswith(PNG):
        return data
    at, kept = len(PNG), []
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] in (b"IHDR", b"PLTE", b"tRNS", b"IDAT"):
            kept.append(data[at + 4 : end - 4])  # without length and checksum
        at = end
    return b"".join(kept)


def effects(sources: Sequence[str]) -> str:
    """Describe what running a notebook's code cells may do outside of the kernel; "" if nothing."""
    kinds = {"write files": _WRITES, "use the network": _NETWORK, "run commands": _SHELL}
    found = []
    for what, pattern in kinds.items():
        cells = [str(n) for n, source in enumerate(sources, 1) if pattern.search(source)]
        if cells:
            found.append(f"{what} (code cell {', '.join(cells)})")
    return ", ".join(found)


def digest_of(sources: Iterable[str]) -> str:
    """Return a digest of all sources, which changes with every edit."""
    return hashlib.sha256("\0".join(sources).encode("utf-8", "surrogatepass")).hexdigest()

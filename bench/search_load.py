"""CPU of a search in a store of 100,000 and of 1,000,000 messages.

Run with `make bench-memory`, or `python bench/search_load.py 100000` for one size. The stores are
made once, from a vocabulary with a natural distribution, and kept in the system's directory for
temporary files; the larger one takes some minutes. Limits at the 95th percentile: 30 ms at 100,000
messages, 250 ms at 1,000,000.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hermes_nb.core.messages import Message
from hermes_nb.memory import rows, schema
from hermes_nb.memory.rows import SessionRow, encode
from hermes_nb.memory.search import finding, index
from hermes_nb.memory.search.postings import Filter

LIMITS = {100_000: 30.0, 1_000_000: 250.0}
"""Milliseconds at the 95th percentile, by messages in the store."""
SEED = 7
VOCABULARY = 50_000
SESSION = 50
"""Messages of a session."""
STARTED = 1_600_000_000.0
SECONDS = 120
"""Between two messages."""
QUERIES = 240


class Language:
    """Words made of syllables, drawn as words of a language are: the n-th is 1/n as common."""

    def __init__(self) -> None:
        self.chance = random.Random(SEED)
        syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
        words: dict[str, None] = dict.fromkeys(
            "the of and to in is it you that he was for on are with as i his they be at one have "
            "this from or had by not but what all were we when your can said there use an".split()
        )
        while len(words) < VOCABULARY:
            words["".join(self.chance.choices(syllables, k=self.chance.randint(2, 4)))] = None
        self.words = list(words)
        self._sums = list(itertools.accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))

    def text(self) -> str:
        """Return a message: mostly a few sentences, sometimes a page."""
        length = min(1500, int(self.chance.lognormvariate(3.3, 0.8)) + 3)
        return " ".join(self.chance.choices(self.words, cum_weights=self._sums, k=length))

    def word(self, *, common: int) -> str:
        """Return a word that is about as common as the one at a rank."""
        return self.words[self.chance.randint(common // 2, common * 2)]

    def rank(self, share: float) -> int:
        """Return the rank up to which words make this share of all text."""
        return bisect.bisect(self._sums, share * self._sums[-1])


def make(path: Path, number: int, language: Language) -> None:
    """Write a store with so many messages, as the store itself would."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    schema.SCHEMA.migrate(connection)
    text = 0
    before = time.process_time()
    connection.execute("BEGIN")
    for row in range(number):
        session, position = f"20261121-220751-{row // SESSION:06x}", row % SESSION
        at = STARTED + row * SECONDS
        if position == 0:
            began = SessionRow(id=session, source="bench", started=at)
            rows.insert(connection, began)
        message = (Message.user, Message.assistant)[row % 2](language.text())
        text += len(message.text)
        rows.append(connection, session, message.role, encode(message), at)
        if (row + 1) % index.TOGETHER == 0:
            index.catch_up(connection)
            connection.execute("COMMIT")
            connection.execute("BEGIN")
    index.catch_up(connection)
    connection.execute("COMMIT")
    connection.close()
    seconds = time.process_time() - before
    facts = {"text": text, "add_ms": seconds / number * 1000, "size": unfinished.stat().st_size}
    path.with_suffix(".json").write_text(json.dumps(facts), encoding="utf-8")
    unfinished.rename(path)


def queries(language: Language, last: float, sessions: list[str]) -> list[tuple[str, str, dict]]:
    """Return queries of every kind, each with the name of its kind and its filters.

    `last` is when the last message was written, `sessions` are some forty.
    """
    found: list[tuple[str, str, dict]] = []
    for turn in range(QUERIES // 12):
        rare, middle, frequent, top = (
            language.word(common=rank) for rank in (20_000, 2_000, 300, 60)
        )
        found += [
            ("rare words", f"{rare} {middle}", {}),
            ("question", f"When did {rare} {middle} and the {frequent} {top}?", {}),
            ("common words", f"{frequent} {top} {language.word(common=60)}", {}),
            ("one common word", top, {}),
            ("all of them", f"{top} AND {frequent}", {}),
            ("part of a word", f"{middle[1:-1]} {frequent}", {}),
            ("misspelt word", f"{middle[:3]}{middle[4:]} {frequent}", {}),
            ("phrase", f'"{top} {language.word(common=60)}"', {}),
            ("prefix", f"{top[:3]}*", {}),
            ("stop words", "what is it that they had", {}),
            ("one session", f"{top} {frequent}", {"session_id": sessions[turn]}),
            ("a month", f"{top} {frequent}", {"since": last - 30 * 86400, "exclude": sessions}),
        ]
    return found


def measure(path: Path, language: Language) -> float:
    """Print what searches cost; return the 95th percentile of all, in milliseconds."""
    connection = sqlite3.connect(path)
    kinds: dict[str, list[float]] = {}
    (last,) = connection.execute("SELECT max(at) FROM messages").fetchone()
    sessions = [row[0] for row in connection.execute("SELECT id FROM sessions LIMIT 40")]
    for kind, query, filters in queries(language, last, sessions):
        before = time.process_time()
        finding.find(connection, query, Filter(**filters))
        kinds.setdefault(kind, []).append((time.process_time() - before) * 1000)
    for kind, spent in kinds.items():
        print(f"  {kind:16} median {statistics.median(spent):6.1f} ms   most {max(spent):6.1f} ms")
    everything = sorted(itertools.chain.from_iterable(kinds.values()))
    return everything[int(len(everything) * 0.95)]


def main() -> None:
    """Make what is missing, measure, and exit with 1 where a limit is broken."""
    sizes = [int(size) for size in sys.argv[1:]] or list(LIMITS)
    broken = False
    for size in sizes:
        language = Language()
        path = Path(tempfile.gettempdir()) / f"hermes-nb-search-{size}.db"
        if not path.exists():
            print(f"making a store of {size:,} messages ...", flush=True)
            make(path, size, language)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        print(
            f"{size:,} messages, {facts['text'] / size:.0f} bytes of text each: written in"
            f" {facts['add_ms']:.3f} ms each, the file is {facts['size'] / facts['text']:.2f} x"
        )
        worst = measure(path, language)
        limit = LIMITS.get(size)
        print(f"  95th percentile {worst:.1f} ms" + (f" (limit {limit:.0f})" if limit else ""))
        broken |= limit is not None and worst > limit
    sys.exit(broken)


if __name__ == "__main__":
    main()

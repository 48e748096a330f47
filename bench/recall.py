"""How often a search finds the turn that answers a question, beside simpler searches.

Run with `make bench-recall`. Conversations of two people over a year, made from hand-written
passages (`recall_passages.txt`), small talk and templates, each in a store of its own; the same
seed gives the same ones. A question's gold turns are those that answer it; recall is the share of
them among the first ten hits. The questions of every second passage are held out: ranking was never
tuned on them. `names` conversations say who speaks in the text, `roles` ones only by role.

A third set (`recall_notebooks/`) are sessions with an agent in notebooks, and what people ask of
them weeks later, written by somebody who had not seen the search. Every second question was looked
at when it was first measured; ours is to find at least 15 points more than plain BM25.

A second set (`recall_chat.py`) has chats in which a question's words are all over the place;
nothing was tuned on it. Its `log` texts begin with a date and the speaker, its `all` is one store
of all the chats.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hermes_nb.core.messages import Message
from hermes_nb.memory.rows import encode
from hermes_nb.memory.search import finding, index
from hermes_nb.storage import words

import recall_chat
from figures import figure

SEED = 20230508
CONVERSATIONS = 10
SESSIONS = 24
PASSAGES = 44
NAMES = (
    "Maria Jonas Priya Tom Leila Oscar Hannah Victor Noor Simon Grace Pavel Alma Felix Ruth Diego "
    "Ingrid Samuel Keiko Marcus"
).split()
OTHERS = "Lena Robert Carmen Ahmed Julia Stefan Nina Paolo Edith Bruno".split()

OPENINGS = (
    "Hey {B}! Good to hear from you. How have you been?",
    "Hi {B}! It's been a while. What's new?",
    "Hello {B}, how are you doing these days?",
    "{B}! So nice to catch up. How's life treating you?",
    "Hey {B}, long time no talk! What have you been up to?",
)
REPLIES = (
    "Hi {A}! I'm doing well, thanks. Busy as always, but I can't complain.",
    "Hey {A}! Pretty good. The weeks just fly by, don't they?",
    "{A}, hi! All good here. How about you?",
    "Hi {A}! A bit tired, work has been crazy, but it's great to talk to you.",
)
CHAT = (
    "That's so great to hear! I'm really happy for you.",
    "Thanks, {B}! Your support means a lot to me.",
    "Wow, that's amazing. I wish I could have been there.",
    "Absolutely! It's important to take time for yourself and your family.",
    "Yeah, it was awesome. I learned so much about myself.",
    "I totally get that. Keep going, you're doing great!",
    "What do you enjoy most about it?",
    "It really helps me relax and clear my mind after work.",
    "Take a look at this picture! What do you think?",
    "That looks lovely. The colors are so vibrant!",
    "The kids loved it. They were so excited the whole day.",
    "Sounds fun! We should do something like that together some time.",
    "I've been thinking about you lately. Is everything okay with your family?",
    "Life has its ups and downs, but friends make it better.",
    "You know what they say, one day at a time.",
)
CLOSINGS = (
    "Anyway, I have to run. Talk to you soon, {B}!",
    "It was great catching up, {B}. Take care!",
    "Let's talk again soon. Bye!",
    "Thanks for listening, {B}. See you!",
)
EVENTS = (
    ("We went bowling with {O} {when}, I lost every single round.", "When did {A} go bowling?"),
    (
        "I took {O} to the aquarium {when}. The jellyfish were magical.",
        "When did {A} visit the aquarium?",
    ),
    (
        "{When} I finally saw the dentist, and it wasn't half as bad.",
        "When did {A} go to the dentist?",
    ),
    (
        "I drove out to the coast with {O} {when} and we ate fish and chips.",
        "When was {A} at the seaside?",
    ),
    (
        "I gave my first talk in front of two hundred people {when}!",
        "When did {A} speak in public?",
    ),
    (
        "{When} our basement was flooded and {O} came over with a pump.",
        "When did {A} have water in the basement?",
    ),
    (
        "I met {O} at a jazz festival {when}, we hadn't seen each other since school.",
        "Who did {A} run into at the jazz festival?",
    ),
    (
        "{O} and I tried the new Ethiopian place {when}. So good.",
        "Who did {A} go to the Ethiopian restaurant with?",
    ),
    (
        "I sold my old motorbike to {O} {when}, it broke my heart a little.",
        "Who bought {A}'s motorbike?",
    ),
    (
        "{When} I baked bread with {O}, four loaves, and none of them rose.",
        "Who did {A} bake bread with?",
    ),
    (
        "I watched the lunar eclipse from the roof with {O} {when}.",
        "When did {A} watch the eclipse?",
    ),
    (
        "{When} I was stuck in the lift for three hours with {O}, of all people.",
        "Who was trapped in the elevator with {A}?",
    ),
    (
        "I started physiotherapy {when}. My shoulder already feels better.",
        "When did {A} begin physiotherapy?",
    ),
    (
        "We repainted the kitchen {when}, it's yellow now. {O} chose the shade.",
        "Who picked the color of {A}'s kitchen?",
    ),
    ("{O} taught me how to fish {when}. I caught one boot.", "Who showed {A} how to fish?"),
)
WHEN = ("yesterday", "last week", "last Saturday", "two days ago", "last weekend", "on Friday")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one of the two says; `labels` name the questions it answers."""

    first: bool
    text: str
    labels: frozenset[str] = frozenset()


@dataclass(slots=True)
class Question:
    """A question and the places, as session and position, that answer it."""

    text: str
    held_out: bool
    kind: str
    gold: set[tuple[str, int]] = field(default_factory=set)


@dataclass(slots=True)
class Conversation:
    """Sessions with their start, and what is asked of them."""

    names: tuple[str, str]
    sessions: list[tuple[str, float, list[Turn]]] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Passage:
    """A hand-written stretch of dialogue and its questions by label."""

    number: int
    questions: dict[str, list[str]]
    turns: tuple[Turn, ...]


@lru_cache(maxsize=1)
def passages() -> tuple[list[Passage], dict[str, str]]:
    """Return the hand-written passages, and the questions asked of a whole conversation."""
    blocks = Path(__file__).with_name("recall_passages.txt").read_text(encoding="utf-8")
    found: list[Passage] = []
    whole: dict[str, str] = {}
    for block in re.split(r"\n\s*\n", blocks):
        questions: dict[str, list[str]] = {}
        turns: list[Turn] = []
        for line in block.splitlines():
            if line.startswith("?"):
                label, questions_text = line[1:].split(" ", 1)
                questions.setdefault(label, []).append(questions_text)
            elif line.startswith("="):
                _, label, text = line.split(" ", 2)
                whole[label] = text
            elif line and not line.startswith("#"):
                head, text = line.split(": ", 1)
                speaker, *labels = head.split("/")
                turns.append(Turn(speaker == "A", text, frozenset(labels)))
        if turns:
            found.append(Passage(len(found), questions, tuple(turns)))
    return found, whole


def conversation(number: int) -> Conversation:
    """Return one conversation of the benchmark."""
    chance = random.Random(SEED + number)
    written, whole = passages()
    one = Conversation(tuple(chance.sample(NAMES, 2)))
    chosen = chance.sample(written, PASSAGES)
    day = dt.datetime(2023, chance.randint(1, 6), 3, 10, tzinfo=dt.UTC)
    everywhere = {label: Question(text, True, "whole", set()) for label, text in whole.items()}
    events = chance.sample(EVENTS, len(EVENTS))
    for session in range(SESSIONS):
        name = f"session-{session:02d}"
        day += dt.timedelta(days=chance.randint(2, 20), hours=chance.randint(0, 9))
        swapped = chance.random() < 0.5
        turns = _spoken(
            (_turn(chance, OPENINGS), _turn(chance, REPLIES, first=False)), one.names, swapped
        )
        for passage in chosen[
            session * PASSAGES // SESSIONS : (session + 1) * PASSAGES // SESSIONS
        ]:
            _add(one, turns, name, passage, everywhere, chance)
            turns += _spoken(
                [
                    _turn(chance, CHAT, first=chance.random() < 0.5)
                    for _ in range(chance.randint(1, 4))
                ],
                one.names,
                swapped,
            )
        if session < len(events):
            _event(one, turns, name, events[session], chance)
        turns += _spoken((_turn(chance, CLOSINGS),), one.names, swapped)
        one.sessions.append((name, day.timestamp(), turns))
    one.questions += (q for q in everywhere.values() if len(q.gold) > 1)
    for question in one.questions:
        question.text = question.text.format(A=one.names[0], B=one.names[1])
    return one


def _turn(chance: random.Random, texts: tuple[str, ...], *, first: bool = True) -> Turn:
    return Turn(first, chance.choice(texts))


def _spoken(turns, names: tuple[str, str], swapped: bool) -> list[Turn]:
    """Return turns with the names in place; `swapped` gives what A says to B."""
    a, b = reversed(names) if swapped else names
    return [
        Turn(t.first != swapped, t.text.replace("{A}", a).replace("{B}", b), t.labels)
        for t in turns
    ]


def _add(one, turns, name, passage: Passage, everywhere, chance) -> None:
    swapped = chance.random() < 0.5
    a, b = reversed(one.names) if swapped else one.names
    places = {label: set() for label in passage.questions}
    for turn in _spoken(passage.turns, one.names, swapped):
        for label in turn.labels:
            gold = everywhere[label].gold if label.startswith("+") else places[label]
            gold.add((name, len(turns)))
        turns.append(turn)
    for label, texts in passage.questions.items():
        for text, kind in zip(texts, ("paraphrased", "plain"), strict=True):
            asked = text.replace("{A}", a).replace("{B}", b)
            one.questions.append(Question(asked, passage.number % 2 == 1, kind, places[label]))


def _event(one, turns, name, event: tuple[str, str], chance) -> None:
    text, question = event
    swapped = chance.random() < 0.5
    a = one.names[swapped]
    when, other = chance.choice(WHEN), chance.choice(OTHERS)
    said = text.replace("{When}", when.capitalize()).replace("{when}", when).replace("{O}", other)
    one.questions.append(
        Question(
            question.replace("{A}", a), EVENTS.index(event) % 2 == 1, "event", {(name, len(turns))}
        )
    )
    turns.append(Turn(not swapped, said))
    turns += _spoken([_turn(chance, CHAT, first=swapped)], one.names, False)


Finder = Callable[[str, int], list[tuple[str, int]]]


def store(one: Conversation, *, named: bool) -> tuple[sqlite3.Connection, list[tuple]]:
    """Return a store's tables with the conversation in them, and its rows."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, started REAL);"
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, position INTEGER, role TEXT,"
        " body TEXT, at REAL, state TEXT, UNIQUE (session, position));" + index.SCHEMA
    )
    now, rows = time.time(), []
    for name, started, turns in one.sessions:
        connection.execute("INSERT INTO sessions VALUES (?, ?)", (name, started))
        for position, turn in enumerate(turns):
            text = f"{one.names[not turn.first]}: {turn.text}" if named else turn.text
            message = (Message.user if turn.first else Message.assistant)(text)
            row = (len(rows) + 1, name, position, message.role, encode(message), now, "active")
            connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            rows.append((row[0], name, position, text, started))
    index.catch_up(connection)
    return connection, rows


def simple(rows, *, tokenizer: str, stop: bool, neighbours: bool) -> Finder:
    """Return a plain FTS5 search: an OR of the words in the order of its rank."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE f USING fts5(own, near, tokenize='{tokenizer}')")
    places = {}
    for number, (row_id, name, position, text, started) in enumerate(rows):
        places[row_id] = (name, position)
        own = text
        around = (
            [
                other[3]
                for other in rows[max(0, number - 2) : number + 3]
                if other[1] == name and other[0] != row_id
            ]
            if neighbours
            else []
        )
        if neighbours:
            own = f"{dt.datetime.fromtimestamp(started, dt.UTC):%A %d %B %Y} {text}"
        connection.execute(
            "INSERT INTO f (rowid, own, near) VALUES (?, ?, ?)", (row_id, own, " ".join(around))
        )
    connection.execute("INSERT INTO f (f, rank) VALUES ('rank', 'bm25(1.0, 0.5)')")

    def find(query: str, limit: int) -> list[tuple[str, int]]:
        asked = [word.replace("'s", "") for word in re.findall(r"\w+(?:'\w+)?", query.lower())]
        left = [w for w in asked if w not in words.stop_words(asked)] if stop else asked
        match = " OR ".join(f'"{word}"' for word in left or asked)
        found = connection.execute(
            "SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT ?", (match, limit)
        )
        return [places[row[0]] for row in found]

    return find


def ours(connection: sqlite3.Connection) -> Finder:
    """Return the search of the store."""
    return lambda query, limit: [
        (hit.session_id, hit.position) for hit in finding.find(connection, query, limit=limit)
    ]


@dataclass(slots=True)
class Result:
    """Figures of one search over some questions."""

    at5: list[float] = field(default_factory=list)
    at10: list[float] = field(default_factory=list)
    reciprocal: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def count(self, question: Question, find: Finder) -> None:
        """Ask one question."""
        before = time.process_time()
        found = find(question.text, 10)
        self.seconds.append(time.process_time() - before)
        self.at5.append(len(question.gold & set(found[:5])) / len(question.gold))
        self.at10.append(len(question.gold & set(found)) / len(question.gold))
        ranks = [rank for rank, place in enumerate(found, 1) if place in question.gold]
        self.reciprocal.append(1 / ranks[0] if ranks else 0.0)

    def line(self) -> str:
        """Return the figures for a table."""
        figures = [f"{statistics.mean(values):6.1%}" for values in (self.at5, self.at10)]
        milliseconds = statistics.mean(self.seconds) * 1000
        return f"{'  '.join(figures)}  {statistics.mean(self.reciprocal):.3f}  {milliseconds:5.1f}"


def finders(connection: sqlite3.Connection, rows) -> dict[str, Finder]:
    """Return the searches to compare."""
    plain = "unicode61"
    return {
        "plain OR": simple(rows, tokenizer=plain, stop=False, neighbours=False),
        "stems, stop words": simple(rows, tokenizer=f"porter {plain}", stop=True, neighbours=False),
        "two columns": simple(rows, tokenizer=f"porter {plain}", stop=True, neighbours=True),
        "ours": ours(connection),
    }


def chats(mode: str) -> list[Conversation]:
    """Return the chats of the second set as stores hold them; `all` is one store with all."""
    found = []
    for number in range(CONVERSATIONS):
        names = tuple(random.Random(number).sample(NAMES, 2))
        sessions, asked = recall_chat.chat(SEED + number, names, tuple(OTHERS))
        one = Conversation(names)
        for name, started, said in sessions:
            day = f"{dt.datetime.fromtimestamp(started, dt.UTC):%I:%M %p, %d %B %Y}"
            head = {"roles": "", "log": f"[{day}] {{}}: "}.get(mode, "{}: ")
            turns = [Turn(first, head.format(names[not first]) + text) for first, text in said]
            one.sessions.append((name, started, turns))
        one.questions += (Question(text, True, "chat", gold) for text, gold in asked)
        found.append(one)
    if mode == "all":
        together = Conversation(("", ""))
        for one in found:
            together.sessions += one.sessions
            together.questions += one.questions
        return [together]
    return found


def compare_chats(only: list[str]) -> bool:
    """Print the table of the second set; say whether ours is better than two columns."""
    better = True
    for mode in ("names", "roles", "log", "all"):
        results: dict[str, Result] = {}
        for one in chats(mode):
            for name, find in finders(*store(one, named=False)).items():
                if only and name not in only:
                    continue
                for question in one.questions:
                    results.setdefault(name, Result()).count(question, find)
        for name, result in results.items():
            print(f"chats, {mode:9} {name:18} {result.line()}  n={len(result.at5)}")
        if not only:
            ours, baseline = (statistics.mean(results[n].at10) for n in ("ours", "two columns"))
            better &= ours > baseline
    return better


def notebook_sessions() -> Conversation:
    """Return the sessions of the third set, with its questions."""
    folder = Path(__file__).with_name("recall_notebooks")
    sessions, asked = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("sessions", "questions")
    )
    one = Conversation(("", ""))
    for each in sessions:
        turns = [Turn(m["role"] == "user", m["text"]) for m in each["messages"]]
        one.sessions.append((each["id"], 0.0, turns))
    one.questions += (
        Question(q["q"], True, q["kind"], {(q["session"], q["position"])}) for q in asked
    )
    return one


def notebooks() -> bool:
    """Print the table of the third set; say whether ours is 15 points better than plain BM25."""
    one = notebook_sessions()
    searches, asked = finders(*store(one, named=False)), one.questions
    at10: dict[str, float] = {}
    for part, questions in (("seen", asked[::2]), ("unseen", asked[1::2]), ("all", asked)):
        for name, find in searches.items():
            result = Result()
            for question in questions:
                result.count(question, find)
            print(f"notebooks, {part:6} {name:18} {result.line()}  n={len(result.at5)}")
            at10[name] = statistics.mean(result.at10)
    gained = 100 * (at10["ours"] - at10["plain OR"])
    return figure("R@10 in notebook sessions above plain BM25", gained, "points", least=15)


def main() -> None:
    """Print the tables; exit with 1 if ours is not better than two columns on unseen questions."""
    only = sys.argv[1:]
    results: dict[tuple[str, bool, str], Result] = {}
    kinds: dict[tuple[str, str, bool], Result] = {}
    turns = 0
    for number in range(CONVERSATIONS):
        one = conversation(number)
        for mode in ("names", "roles"):
            connection, rows = store(one, named=mode == "names")
            turns += len(rows)
            for name, find in finders(connection, rows).items():
                if only and name not in only:
                    continue
                for question in one.questions:
                    result = results.setdefault((mode, question.held_out, name), Result())
                    result.count(question, find)
                    if name == "ours":
                        kind = kinds.setdefault((mode, question.kind, question.held_out), Result())
                        kind.count(question, find)
    print(f"{CONVERSATIONS} conversations, {turns // 2 // CONVERSATIONS} turns each")
    print(f"{'':34}  R@5     R@10    MRR     ms")
    for (mode, held_out, name), result in sorted(results.items(), key=lambda r: r[0][:2]):
        part = "held out" if held_out else "tuned on"
        print(f"{mode}  {part}  {name:18} {result.line()}  n={len(result.at5)}")
    for (mode, kind, held_out), result in sorted(kinds.items()):
        part = "held out" if held_out else "tuned on"
        print(f"{mode}  {part}  ours, {kind:12} {result.line()}  n={len(result.at5)}")
    better = compare_chats(only)
    better &= bool(only) or notebooks()
    if not only:
        for mode, least in (("names", 59.8), ("roles", 58.9)):
            share = statistics.mean(results[mode, True, "ours"].at10) * 100
            better &= figure(f"R@10 in talks, {mode}, held out", share, "%", least=least)
        better &= all(
            statistics.mean(results[mode, True, "ours"].at10)
            > statistics.mean(results[mode, True, "two columns"].at10)
            for mode in ("names", "roles")
        )
        sys.exit(not better)


if __name__ == "__main__":
    main()

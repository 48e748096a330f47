"""Chats of two people who come back to the same few topics, for `recall.py`.

Unlike in its passages, a question's words are all over the conversation: what tells the right turn
from the others about its topic is who said it, a detail, or the turn it answers. Turns are short.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path

SESSIONS = 26
FACTS = 40
"""Of the topics' 60, told in one conversation."""

SMALL_TALK = (
    "Hey {B}! How's it going with {topic}?",
    "Wow, {A}, that's great! I love hearing about {topic}.",
    "Thanks, {B}! {topic_} has been keeping me busy.",
    "That's awesome, {B}. You must be really proud.",
    "I can imagine. {topic_} can be tough sometimes.",
    "Totally. It means so much to have a friend like you, {B}.",
    "How did you get into {topic} in the first place?",
    "I've been thinking about {topic} a lot lately.",
    "No way! Tell me more about it.",
    "It was a great day with the family. Everyone had fun.",
    "Here's a photo I took. Isn't it beautiful?",
    "So cool! What inspired you?",
    "Yeah, {topic} makes me happy. It's my way to unwind.",
    "You're right. Taking care of ourselves is so important.",
    "What's new with you, {B}? Anything fun planned?",
    "Not much, just work and the kids. They've been into {topic} too.",
    "I'm so glad you found something you love, {B}.",
    "Keep it up! I can't wait to see what comes next.",
    "By the way, I saw something about {topic} and thought of you.",
    "Talk to you soon, {B}! Take care.",
)
WHEN = (
    "yesterday",
    "last week",
    "last Friday",
    "two days ago",
    "last weekend",
    "on Tuesday",
    "the week before last",
    "last month",
    "a few days ago",
)

Said = tuple[bool, str]
"""Whether the first of the two says it, and what."""
Place = tuple[str, int]


def topics() -> list[tuple[list[str], list[tuple[list[str], str]]]]:
    """Return the words for each topic, and what is told of it, in turns, with its question."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    found: list[tuple[list[str], list[tuple[list[str], str]]]] = []
    for line in lines:
        if line.startswith("="):
            found.append((line.partition("|")[2].strip().split(", "), []))
        elif line and not line.startswith("#"):
            told, question = line.split(" || ")
            found[-1][1].append((told.split(" // "), question))
    return found


def chat(
    seed: int, names: tuple[str, str], others: tuple[str, ...]
) -> tuple[list[tuple[str, float, list[Said]]], list[tuple[str, set[Place]]]]:
    """Return sessions (a name, when it began, its turns) and questions with their places."""
    chance = random.Random(seed)
    known = topics()
    facts = [(words, *fact) for words, told in known for fact in told]
    chosen = [(*fact, chance.random() < 0.5) for fact in chance.sample(facts, FACTS)]
    day = dt.datetime(2023, 1, 9, 14, tzinfo=dt.UTC)
    sessions, questions = [], []
    for number in range(SESSIONS):
        name = f"chat-{seed}-{number:02d}"
        day += dt.timedelta(days=chance.randint(3, 16), hours=chance.randint(0, 5))
        turns: list[Said] = []
        for words, told, question, first in chosen[
            number * FACTS // SESSIONS : (number + 1) * FACTS // SESSIONS
        ]:
            _talk(turns, chance, words, names, chance.randint(2, 5))
            for place, text in enumerate(told):
                said = text.replace("{when}", chance.choice(WHEN))
                speaker = first == (place % 2 == 0)
                if said.startswith("*"):
                    # "{A}" of a question is who spoke first, also where the other one answers.
                    asked = _named(question, names, first=first)
                    questions.append((asked, {(name, len(turns))}))
                said = said.lstrip("*").replace("{N}", chance.choice(others))
                turns.append((speaker, _named(said, names, first=speaker)))
            _talk(turns, chance, words, names, chance.randint(2, 5))
        _talk(turns, chance, chance.choice(known)[0], names, chance.randint(3, 7))
        sessions.append((name, day.timestamp(), turns))
    return sessions, questions


def _named(text: str, names: tuple[str, str], *, first: bool) -> str:
    a, b = names if first else names[::-1]
    return text.replace("{A}", a).replace("{B}", b)


def _talk(
    turns: list[Said],
    chance: random.Random,
    words: list[str],
    names: tuple[str, str],
    number: int,
) -> None:
    for _ in range(number):
        first = not turns[-1][0] if turns else chance.random() < 0.5
        topic = chance.choice(words)
        text = chance.choice(SMALL_TALK).replace("{topic_}", topic[0].upper() + topic[1:])
        turns.append((first, _named(re.sub("{topic}", topic, text), names, first=first)))

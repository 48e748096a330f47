"""Facts as they look in life, without a word that calls for attention, and how many stay in view.

What is planted is worded like what stands around it, in five languages, among lines that are louder
than it is, and known by a value or a name that occurs nowhere else. Words are made up, so that no
two lines say the same by chance.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.compressor import Compressor
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.text import estimate_tokens
from hermes_nb.memory.sessions import SqliteStore

from tests.context.probes import Probe

WINDOW = 200_000
PARTS = "ba ker li mo nus po ra sil te ver wyn dor fel gan hu jin".split()
UNITS = "kg m/s kPa °C ms rows EUR mm ppm GB".split()
SPOKEN = (
    "The {noun} of {name} come to {value} {unit} once they are put together.",
    "For {name} I get {value} {unit}, from the second run on.",
    "{name} measured {value} {unit} on the {noun} side.",
    "Bei {name} liegen die Werte bei {value} {unit}, über alle Läufe.",
    "Chez {name}, la médiane est de {value} {unit} sur les deux séries.",
    "En {name} la media quedó en {value} {unit} para ambos grupos.",
    "{name} 的平均值是 {value} {unit}。",
    "We use the copy that {name} made, {value}, for the figures.",
    "The plot takes its colours from {value}, as {name} likes it.",
)
LOGGED = (
    "fit: settled at {value} after {n} passes",
    "{name} gives {value} {unit}",
    "copy kept in {value}",
    "{noun}: shift of {value} {unit} applied",
    "saved as {value} for {name}",
    "seed {value} from here on",
    "best so far {value} in round {m}",
    "{name} answered with {value}",
)
PLANTED = {
    "said": SPOKEN,
    "asked": SPOKEN,
    "prose": SPOKEN,
    "log": tuple(f"12:{{m:02}}:41 INFO  {each}" for each in LOGGED),
    "table": ("{name:>12} {value:>10}  mean of both series",),
    "config": ('  "{verb}_{noun}": {value},',),
    "code": ("{noun}_{verb} = {value}",),
}
LOUD = (
    "WARNING: {n} values are missing in column {noun}_{m}",
    "error: could not {verb} data/{noun}/part-{n}.csv, trying again",
    "note: {noun} must be sorted before {verb}, see src/{verb}/{noun}.py:{m}",
    "TODO: {verb} the remaining {n} {noun}",
    "{noun} = {n}.{m} in {m} groups",
    "DeprecationWarning: {verb}_{noun} is deprecated since 2.{m}.0",
    "failed to {verb} {n} of {noun}: timeout after {m} s",
    "saved plots/{noun}_{m}.png ({n} kB)",
)
CHAT = (
    "The {noun} table loads, {n} rows in {m} s; now I {verb} it.",
    "That went through. Next come the {noun} in data/{noun}/part-{n}.csv.",
    "We decided to {verb} the {noun} first because {n} of them are missing.",
    "The test of {verb} still fails in src/{verb}/{noun}.py, line {m}; it must be fixed later.",
    "Part {m} is read, with {n} {noun} for {name}. The next one follows.",
)
AROUND = {
    "log": (
        "12:{m:02}:{m:02} INFO  {noun}: {verb} of {name} done",
        "12:{m:02}:{m:02} INFO  {noun}: reading part {n} of {name}",
        "12:{m:02}:{m:02} INFO  {noun}: {n} {unit} read",
    ),
    "table": ("{name:>12} {n:10}.{m:04}  A", "{name:>12} {n:10}.{m:04}  B"),
    "prose": (
        "The {noun} were collected over several weeks by people who knew the place well.",
        "Much has been written about {noun}, and little of it agrees.",
        "In the second part we {verb} the {noun} and compare them with what others found.",
        "Whoever wants to {verb} {noun} has to begin with a good map and some patience.",
    ),
    "config": (
        '  "{verb}_{noun}": {n},',
        '  "{verb}_{noun}": true,',
        '  "{verb}_{noun}": "{name}",',
    ),
    "code": ("{noun} = {verb}({noun})", "if {noun}.empty:", "    {noun} = None", "# {verb} {noun}"),
    "list": ("-rw-r--r-- 1 ann staff {n:8}{m} data/{noun}/part-{m:04}.csv",),
}


class PlainStory:
    """A conversation of `steps` calls, with a fact at every third one."""

    def __init__(self, seed: int, steps: int, *, name: str = "") -> None:
        self._rng = random.Random(seed)
        self._name = name
        self.probes: list[Probe] = []
        self.messages = [Message.user("Prepare the report on the stations.")]
        for step in range(steps):
            self._step(step, self._fact(step) if step % 3 == 0 and step < steps * 0.8 else None)
        self.messages.append(Message.assistant("All parts are read."))
        self.messages.append(Message.user("Where do we stand?"))

    def _word(self) -> str:
        return "".join(self._rng.choices(PARTS, k=self._rng.randrange(2, 4)))

    def _fill(self, pattern: str, **given: str) -> str:
        rng = self._rng
        values = {"n": rng.randrange(2, 4000), "m": rng.randrange(2, 60)}
        words = {"noun": self._word(), "verb": self._word(), "name": self._word().title()}
        return pattern.format_map(values | words | {"unit": rng.choice(UNITS)} | given)

    def _fact(self, step: int) -> Probe:
        rng = self._rng
        place = rng.choice(list(PLANTED))
        value = f"{rng.randrange(10, 999)}.{step:03}{rng.randrange(1, 9)}"
        if place in ("said", "asked", "log", "prose") and rng.random() < 0.3:
            value = f"{self._word()}-{step:03}{rng.choice('xyz')}"
        text = self._fill(rng.choice(PLANTED[place]), value=value)
        self.probes.append(Probe("plain", place, text, value))
        return self.probes[-1]

    def _step(self, step: int, due: Probe | None) -> None:
        rng = self._rng
        place = due.place if due is not None else ""
        told = due.text if due is not None else ""
        if place == "asked" or step % 12 == 11:
            wish = self._fill("Go on with {noun}.")
            self.messages.append(Message.assistant(self._fill("The {noun} part works now.")))
            self.messages.append(Message.user(f"{wish} {told}" if place == "asked" else wish))
        kind = place if place in AROUND else rng.choice(list(AROUND))
        lines = [self._fill(rng.choice(AROUND[kind])) for _ in range(rng.randrange(40, 110))]
        for _ in range(rng.randrange(2, 7)):
            lines.insert(rng.randrange(len(lines)), self._fill(rng.choice(LOUD)))
        if place == kind:
            lines.insert(rng.randrange(len(lines) // 4, len(lines) * 3 // 4), told)
        said = " ".join(self._fill(rng.choice(CHAT)) for _ in range(rng.randrange(3)))
        said = f"{told} {said}".strip() if place == "said" else said
        text = "\n".join(lines)
        call = ToolCall(
            id=f"{self._name}{step}", name="terminal", arguments={"command": f"./{step}"}
        )
        if kind == "code":
            call = ToolCall(id=call.id, name="run_python", arguments={"code": text})
        result = Message.tool(call, "done" if kind == "code" else text)
        self.messages += [Message.assistant(said, calls=[call]), result]


class Ideal:
    """A summariser that keeps every planted fact which it is shown."""

    name = "ideal"
    window = WINDOW

    def __init__(self, probes: list[Probe]) -> None:
        self._probes = probes

    async def stream(self, request):
        shown = "\n".join(everything(message) for message in request.messages)
        kept = [f"- {probe.text.strip()}" for probe in self._probes if probe.key in shown]
        said = Message.assistant("\n".join(["## Critical values", *kept]))
        yield Reply(message=said, usage=Usage(input=1, output=1, requests=1))

    async def aclose(self) -> None:
        pass


def in_view(seed: int, *, steps: int, limit: int, rounds: int = 1, ideal: bool = False) -> float:
    """Return the share of facts that are in view after so many parts, each of them compressed."""
    messages: list[Message] = []
    probes: list[Probe] = []
    with closing(SqliteStore(":memory:")) as store:
        session = store.start()
        model = Ideal(probes) if ideal else None
        engine = Compressor(
            model, window=WINDOW, max_prompt_tokens=limit, archive=Archive(store, session)
        )
        for number in range(rounds):
            story = PlainStory(seed * 100 + number, steps, name=f"{number}.")
            probes += story.probes
            for message in story.messages:
                store.append(session, message)
            messages += story.messages
            engine.should_compress(max(limit, estimate_tokens(messages)))
            messages = list(asyncio.run(engine.compress(messages)).messages)
            store.replace(session, messages)
    view = "\n".join(map(everything, messages))
    return sum(probe.key in view for probe in probes) / len(probes)

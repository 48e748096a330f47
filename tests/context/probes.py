"""Long, realistic tool conversations, made from a seed, with facts in seven kinds of place."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from hermes_nb.core.messages import Message, ToolCall

PLACES = ("middle", "end", "short", "said", "argument", "asked", "error")
NOUNS = "orders prices users events sensors invoices sessions trips claims scores".split()
VERBS = "load parse merge clean split export score plot cache index".split()


@dataclass(frozen=True, slots=True)
class Probe:
    """A planted fact: `key` is the part of it that must not get lost."""

    kind: str
    place: str
    text: str
    key: str


def facts(rng: random.Random) -> dict[str, tuple[str, str]]:
    """Return one fact of each kind, with its key."""
    number = rng.randrange(10_000, 99_999)
    noun, verb = rng.choice(NOUNS), rng.choice(VERBS)
    path = f"/srv/exports/{noun}_{number}/final_{verb}.parquet"
    return {
        "path": (f"The cleaned table was written to {path}", path),
        "error": (
            f"{verb.title()}Error: column '{noun}_{number}' not found in axis",
            f"'{noun}_{number}' not found",
        ),
        "number": (f"{noun}_max_lag = {number / 1000}", f"{noun}_max_lag = {number / 1000}"),
        "decision": (
            f"We decided to {verb} {noun} with strategy S{number} because it keeps the order.",
            f"S{number}",
        ),
        "constraint": (f"Never overwrite the {noun} snapshot of release R{number}.", f"R{number}"),
        "ask": (f"Still open: ask the owner of {noun} about ticket T-{number}.", f"T-{number}"),
    }


class Story:
    """A conversation of `steps` tool calls; `probes` are the facts in it, all in its first part."""

    def __init__(self, seed: int, steps: int, *, probed: float = 0.6) -> None:
        self.rng = random.Random(seed)
        self.messages: list[Message] = []
        self.probes: list[Probe] = []
        waiting = self._planted()
        self.rng.shuffle(waiting)
        self._ask("Build the weekly report from data/ and fix what is broken on the way.", [])
        each = max(1, int(steps * probed) // max(len(waiting), 1))
        for step in range(steps):
            due = waiting[:1] if step >= 2 and step % each == 0 else []
            del waiting[: len(due)]
            if step % 15 == 14 or (due and due[0].place == "asked"):
                self._answer(step)
                self._ask(self._wish(step), [p for p in due if p.place == "asked"])
            self._step(step, due)
        self.probes = [probe for probe in self.probes if probe not in waiting]
        self._answer(steps)
        self._ask("Where do we stand?", [])

    def _planted(self) -> list[Probe]:
        for place in PLACES:
            for kind, (text, key) in facts(self.rng).items():
                self.probes.append(Probe(kind, place, text, key))
        return list(self.probes)

    def _ask(self, text: str, planted: list[Probe]) -> None:
        self.messages.append(Message.user(" ".join([text, *(probe.text for probe in planted)])))

    def _answer(self, step: int) -> None:
        noun = self.rng.choice(NOUNS)
        self.messages.append(Message.assistant(f"The {noun} part works now; step {step} is done."))

    def _wish(self, step: int) -> str:
        return f"Go on with the {self.rng.choice(NOUNS)} table, part {step}."

    def _step(self, step: int, due: list[Probe]) -> None:
        by_place = {probe.place: probe for probe in due}
        kind = self.rng.choice(["list", "log", "frame", "file", "grep"])
        if "error" in by_place:
            kind = "error"
        elif "short" in by_place:
            kind = "short"
        elif "argument" in by_place:
            kind = "write"
        elif by_place.keys() & {"middle", "end"}:
            kind = self.rng.choice(["list", "log", "frame", "file"])
        name, arguments, lines = getattr(self, f"_{kind}")(step, by_place)
        if probe := by_place.get("middle"):
            lines.insert(len(lines) // 2, probe.text)
        if probe := by_place.get("end"):
            lines.insert(len(lines) - 1, probe.text)
        call = ToolCall(
            id=f"call_{step}", name=name, arguments=arguments, text=json.dumps(arguments)
        )
        said = by_place["said"].text if "said" in by_place else ""
        if not said and self.rng.random() < 0.3:
            said = f"I look at the {self.rng.choice(NOUNS)} part next."
        failed = kind == "error"
        self.messages += [
            Message.assistant(said, calls=[call]),
            Message.tool(call, "\n".join(lines), failed=failed),
        ]

    def _list(self, step, planted):
        lines = [
            f"-rw-r--r-- 1 ann staff {self.rng.randrange(9_999_999):8} "
            f"data/{self.rng.choice(NOUNS)}/part-{n:04}.csv"
            for n in range(self.rng.randrange(60, 140))
        ]
        return "terminal", {"command": f"ls -l data/part{step}"}, [*lines, "[exit 0, 0.1 s]"]

    def _log(self, step, planted):
        lines = [
            f"tests/test_{self.rng.choice(NOUNS)}.py::test_{self.rng.choice(VERBS)}_{n} PASSED"
            f" [{n:3}%]"
            for n in range(self.rng.randrange(60, 120))
        ]
        lines.append(f"=== {len(lines)} passed in {self.rng.random() * 9:.2f}s ===")
        return "terminal", {"command": "pytest -q tests"}, [*lines, "[exit 0, 9.1 s]"]

    def _frame(self, step, planted):
        lines = ["      id      value  group"]
        lines += [
            f"{n:4} {self.rng.randrange(10**6):8} {self.rng.random():8.4f} "
            f"{self.rng.choice('ABCD')}"
            for n in range(self.rng.randrange(50, 90))
        ]
        lines.append("[90 rows x 3 columns]")
        return "run_python", {"code": f"df.query('part == {step}').head(90)"}, lines

    def _file(self, step, planted):
        lines = [f"def {self.rng.choice(VERBS)}_{self.rng.choice(NOUNS)}(frame, n={step}):"]
        for number in range(self.rng.randrange(50, 100)):
            verb, noun = self.rng.choice(VERBS), self.rng.choice(NOUNS)
            lines.append(
                self.rng.choice(
                    [
                        f"    {noun} = {verb}(frame[{noun!r}], {number})",
                        f"    if {noun}.empty:",
                        "        return None",
                        f"    # {verb} the {noun} first",
                        "",
                    ]
                )
            )
        path = f"src/{self.rng.choice(VERBS)}/{self.rng.choice(NOUNS)}.py"
        return "read_file", {"path": path}, [f"{n:4} {line}" for n, line in enumerate(lines, 1)]

    def _grep(self, step, planted):
        lines = [
            f"src/{self.rng.choice(VERBS)}/{self.rng.choice(NOUNS)}.py:{n * 7}: "
            f"from core import {self.rng.choice(VERBS)}"
            for n in range(self.rng.randrange(10, 50))
        ]
        return "search_files", {"pattern": self.rng.choice(NOUNS)}, lines

    def _short(self, step, planted):
        return (
            "terminal",
            {"command": f"./status {step}"},
            [planted["short"].text, "[exit 0, 0.1 s]"],
        )

    def _write(self, step, planted):
        _, _, lines = self._file(step, planted)
        lines.insert(len(lines) // 2, f"# {planted['argument'].text}")
        path = f"src/new_{step}.py"
        content = "\n".join(lines)
        return "write_file", {"path": path, "content": content}, [f"created {path}"]

    def _error(self, step, planted):
        lines = ["Traceback (most recent call last):"]
        for _ in range(self.rng.randrange(4, 14)):
            name = self.rng.choice(NOUNS)
            lines += [
                f'  File "/app/src/{name}.py", line {self.rng.randrange(900)}, in {name}',
                f"    return {self.rng.choice(VERBS)}({name})",
            ]
        return (
            "terminal",
            {"command": f"python run.py {step}"},
            [*lines, planted["error"].text, "[exit 1, 2.0 s]"],
        )

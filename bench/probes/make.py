"""Generate long notebook sessions in which facts were mentioned and never marked.

A recipe (`tuning/*.json`, `set_aside/*.json`) has the facts and the vocabulary of one session.
A bank (`banks/*.json`) has the filler of one half. The same recipe always gives the same session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
HALVES = ("tuning", "set_aside")
CHARS_PER_TOKEN = 4
MIN_TOKENS, MAX_TOKENS = 125_000, 190_000
EARLY, MIDDLE, LATEST_USE = (0.02, 0.40), (0.42, 0.79), 0.96
SLOT = re.compile(r"<(n|k|f|p|col|name|file|script|var|day)>")
TOOLS = {
    "table": ["run_python", "run_cell"],
    "log": ["terminal", "run_cell"],
    "code": ["read_file"],
    "document": ["read_file"],
    "hits": ["search_files"],
    "outline": ["notebook_outline"],
    "traceback": ["run_cell"],
    "short": ["run_python"],
}
SHAPES = [*TOOLS, "table", "log", "short"]  # these three are more frequent

Message = dict[str, Any]
Recipe = dict[str, Any]
Fact = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One fact: every group in `needles` lists alternatives, one of which must be in view."""

    id: str
    kind: str
    language: str
    message: int  # index into the session's messages
    needles: list[list[str]]


@dataclass(slots=True, kw_only=True)
class Session:
    """A conversation in OpenAI's chat form and the probes in it."""

    id: str
    language: str
    messages: list[Message] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Estimate at four characters a token."""
        return sum(map(size, self.messages)) // CHARS_PER_TOKEN


def size(message: Message) -> int:
    """Count the characters of a message, arguments of tool calls included."""
    calls = message.get("tool_calls", [])
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)


def clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


class Filler:
    """Random text without the needles of any fact."""

    def __init__(self, recipe: Recipe, bank: dict[str, Any], rng: Random) -> None:
        self.rng = rng
        self.theme = recipe["theme"]
        self.words = bank[recipe["language"]]
        self.shared = bank["any"]
        groups = [group for fact in recipe["facts"] for group in fact["needles"]]
        self.needles = [needle.lower() for group in groups for needle in group]
        self.last = 0

    def free(self, text: str) -> bool:
        return not any(needle in text.lower() for needle in self.needles)

    def number(self) -> str:
        """Return the next number of a table's index, which has gaps as after a query."""
        self.last += self.rng.randint(1, 3)
        while not self.free(str(self.last)):
            self.last += 1
        return str(self.last)

    def clean(self, make: Callable[[], str]) -> str:
        """Call `make` until its text has no needle. Raises ValueError after 300 attempts."""
        text = ""
        for _ in range(300):
            text = make()
            if self.free(text):
                return text
        raise ValueError(f"no filler without a needle; choose a rarer needle than in {text!r}")

    def slot(self, name: str) -> str:
        rng = self.rng
        if name in ("col", "name", "file"):
            return rng.choice(self.theme[name + "s"])
        if name == "script":
            return self.path(".py")
        if name == "var":
            return rng.choice(self.shared["vars"])
        if name == "day":
            return f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        if name in ("n", "k"):
            return str(rng.randint(*{"n": (61, 98_000), "k": (2, 60)}[name]))
        return f"{rng.random():.4f}" if name == "f" else f"{rng.uniform(0, 99):.1f}"

    def path(self, ending: str) -> str:
        return self.rng.choice([file for file in self.theme["files"] if file.endswith(ending)])

    def fill(self, template: str) -> str:
        """Fill the slots; two slots in a line differ, except `var`."""
        used: set[str] = set()

        def value(match: re.Match[str]) -> str:
            for _ in range(20):
                text = self.slot(match[1])
                if text not in used:
                    break
            used.add(text)
            return text

        var = self.slot("var")
        return SLOT.sub(value, template.replace("<var>", var))

    def pick(self, templates: list[str]) -> str:
        return self.clean(lambda: self.fill(self.rng.choice(templates)))

    def several(self, templates: list[str], count: int) -> list[str]:
        """Pick `count` texts; no template twice in a row."""
        picked: list[str] = []
        order: list[str] = []
        while len(picked) < count:
            order = order or self.rng.sample(templates, len(templates))
            template = order.pop()
            with suppress(ValueError):  # this template has a needle in it
                picked.append(self.clean(lambda one=template: self.fill(one)))
        return picked

    def prose(self, low: int, high: int) -> str:
        glue = "" if "。" in self.words["report"][0] else " "
        return glue.join(self.several(self.words["report"], self.rng.randint(low, high)))

    def cell(self, kind: str) -> str:
        """Return a table's cell: `name`, `day`, `a|b|c`, `low:high` or `low:high:decimals`."""
        if kind in ("name", "day"):
            return self.fill(f"<{kind}>")
        if "|" in kind:
            return self.rng.choice(kind.split("|"))
        low, high, *decimals = kind.split(":")
        if decimals:
            return f"{self.rng.uniform(float(low), float(high)):.{decimals[0]}f}"
        return str(self.rng.randint(int(low), int(high)))

    def within(self, lines: list[str], fact: str | None) -> list[str]:
        """Insert the fact somewhere between 35 % and 65 % of the lines."""
        if fact is not None:
            lines.insert(int(len(lines) * self.rng.uniform(0.35, 0.65)), fact)
        return lines

    def table(self, fact: str | None = None) -> str:
        """Return a table as pandas prints it."""
        names, kinds = zip(*(column.split("=", 1) for column in self.theme["table"]), strict=True)
        count = self.rng.randint(60, 170)
        lines = [self.clean(lambda: ";".join(map(self.cell, kinds))) for _ in range(count)]
        self.last = self.rng.randint(0, 40)
        rows = [[cell.strip() for cell in line.split(";")] for line in self.within(lines, fact)]
        rows = [["", *names], *([self.number(), *row] for row in rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        padded = ([c.rjust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(row) for row in padded)

    def log(self, fact: str | None = None) -> str:
        lines = self.several(self.theme["log"], self.rng.randint(60, 170))
        for odd in self.several(self.shared["odd_log"], self.rng.randint(2, 7)):
            lines.insert(self.rng.randrange(len(lines)), odd)
        second = self.rng.randint(20_000, 50_000)
        day = self.pick(["<day>"])
        style = self.rng.choice(("{day} {time}", "{time}", "[{time}]", "{day}T{time}Z"))
        stamped = []
        for line in self.within(lines, fact):
            second += self.rng.randint(0, 40)
            while not self.free(time := clock(second)):
                second += 1
            stamped.append(f"{style.format(day=day, time=time)} {line}")
        return "\n".join(stamped)

    def code(self, fact: str | None = None) -> str:
        blocks = self.several(self.shared["code"], self.rng.randint(12, 24))
        body = "\n\n\n".join(self.within(blocks, fact))
        return f"{self.pick(self.shared['imports'])}\n\n\n{body}\n"

    def document(self, fact: str | None = None) -> str:
        glue = "" if "。" in self.words["doc"][0] else " "
        lines = self.within(self.several(self.words["doc"], self.rng.randint(40, 70)), fact)
        starts = range(0, len(lines), 4)
        return "\n\n".join(glue.join(lines[start : start + 4]) for start in starts)

    def hit(self) -> str:
        line = self.rng.choice(self.rng.choice(self.shared["code"]).splitlines())
        return self.fill(f"<script>:<k>: {line}")

    def hits(self) -> str:
        return "\n".join(self.clean(self.hit) for _ in range(self.rng.randint(25, 80)))

    def outline(self) -> str:
        lines = self.several(self.shared["outline"], self.rng.randint(30, 70))
        return "\n".join(f"[{number}] {line}" for number, line in enumerate(lines, 1))

    def traceback(self) -> str:
        return self.pick(self.shared["traces"])

    def short(self) -> str:
        return self.pick(self.shared["short"])


class Writer:
    """Append turns to a session: ordinary ones, and ones with a fact."""

    def __init__(self, recipe: Recipe, filler: Filler) -> None:
        self.session = Session(id=recipe["id"], language=recipe["language"])
        self.filler = filler
        self.rng = filler.rng
        self.chars = 0
        self.calls = 0

    def add(self, role: str, content: str, **rest: Any) -> None:
        message = {"role": role, "content": content, **rest}
        self.session.messages.append(message)
        self.chars += size(message)

    def mark(self, fact: Fact) -> None:
        """Record a probe for the message added last."""
        known = {key: fact[key] for key in ("id", "kind", "needles")}
        index = len(self.session.messages) - 1
        self.session.probes.append(Probe(language=self.session.language, message=index, **known))

    def call(self, tool: str, arguments: dict[str, Any], result: str) -> None:
        self.calls += 1
        while not self.filler.free(f"{self.calls:04}"):
            self.calls += 1
        name = f"call_{self.calls:04}"
        function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
        says = self.filler.pick(self.filler.words["plan"]) if self.rng.random() < 0.6 else ""
        made = [{"id": name, "type": "function", "function": function}]
        self.add("assistant", says, tool_calls=made)
        self.add("tool", result, tool_call_id=name)

    def arguments(self, tool: str, shape: str) -> dict[str, Any]:
        """Return plausible arguments for a tool."""
        pick, shared = self.filler.pick, self.filler.shared
        if tool in ("run_python", "terminal"):
            key, bank = ("code", "snippets") if tool == "run_python" else ("command", "commands")
            return {key: pick(shared[bank])}
        if tool == "search_files":
            return {"pattern": pick(["<col>", "<var>", "def .*<var>"])}
        if tool == "read_file":
            return {"path": self.filler.path(".py" if shape == "code" else ".md")}
        return {} if tool == "notebook_outline" else {"cell": self.rng.randint(1, 80)}

    def result(self) -> None:
        """Append an ordinary tool call with a long or a short result."""
        shape = self.rng.choice(SHAPES)
        tool = self.rng.choice(TOOLS[shape])
        self.call(tool, self.arguments(tool, shape), getattr(self.filler, shape)())

    def edit(self) -> None:
        """Append a call that writes a file or changes a cell."""
        if self.rng.random() < 0.4:
            text = self.filler.code()
            while not self.filler.free(str(len(text.splitlines()))):
                text = self.filler.code()
            path = self.filler.path(".py")
            done = f"wrote {len(text.splitlines())} lines to {path}"
            self.call("write_file", {"path": path, "content": text}, done)
        else:
            source = self.filler.pick(self.filler.shared["code"])
            cell = self.rng.randint(1, 80)
            self.call("edit_cell", {"cell": cell, "source": source}, f"cell {cell} changed")

    def turn(self, prompt: str | None = None) -> None:
        """Append an ordinary turn."""
        self.add("user", prompt or self.ask())
        for _ in range(self.rng.randint(1, 3)):
            self.result()
        if self.rng.random() < 0.3:
            self.edit()
        self.add("assistant", self.filler.prose(2, 5))

    def ask(self) -> str:
        asked = self.filler.pick(self.filler.words["ask"])
        if self.rng.random() < 0.4:
            glue = "" if "。" in asked else " "
            asked += glue + self.filler.pick(self.filler.words["aside"])
        return asked

    def fact(self, fact: Fact) -> None:
        """Append a turn in which a fact is mentioned."""
        kind, text = fact["kind"], fact["text"]
        if kind == "user_aside":
            self.add("user", text)
            self.mark(fact)
            self.result()
            self.add("assistant", self.filler.prose(2, 4))
            return
        self.add("user", self.ask())
        if kind == "assistant_prose":
            self.result()
            parts = [self.filler.prose(1, 2), text, self.filler.prose(1, 3)]
            self.add("assistant", "\n\n".join(parts) if self.rng.random() < 0.3 else join(parts))
            self.mark(fact)
            return
        tool, arguments, result = self.result_with(fact)
        self.call(tool, arguments, result)
        self.mark(fact)
        if self.rng.random() < 0.4:
            self.result()
        self.add("assistant", self.filler.prose(2, 4))

    def result_with(self, fact: Fact) -> tuple[str, dict[str, Any], str]:
        """Return the tool, its arguments and its result with the fact in it."""
        text, filler = fact["text"], self.filler
        if fact["kind"] in ("one_line_result", "short_result"):
            tool, argument = fact["call"]
            key = {"terminal": "command", "read_file": "path", "search_files": "pattern"}
            return tool, {key.get(tool, "code"): argument}, text
        shape = fact.get("in") or fact["kind"].removesuffix("_middle")
        tool = self.rng.choice(TOOLS[shape])
        return tool, self.arguments(tool, shape), getattr(filler, shape)(text)


def join(parts: list[str]) -> str:
    """Join sentences; Japanese has no space between them."""
    return ("" if parts[0].endswith("。") else " ").join(parts)


def schedule(recipe: Recipe, rng: Random) -> list[tuple[float, str, Fact]]:
    """Return when each fact is mentioned and used, as a share of the session."""
    due: list[tuple[float, str, Fact]] = []
    for start, (low, high) in enumerate((EARLY, MIDDLE)):
        facts = recipe["facts"][start::2]
        rng.shuffle(facts)
        for place, fact in enumerate(facts):
            when = low + (high - low) * place / max(1, len(facts) - 1)
            due.append((when, "fact", fact))
            if "later" in fact:
                due.append((rng.uniform(when + 0.12, LATEST_USE), "later", fact))
    return sorted(due, key=lambda entry: entry[0])


def build(half: str, name: str) -> Session:
    """Generate one session. `name` is the recipe's file name without `.json`."""
    recipe = json.loads((HERE / half / f"{name}.json").read_text(encoding="utf-8"))
    bank = json.loads((HERE / "banks" / f"{half}.json").read_text(encoding="utf-8"))
    rng = Random(f"{half}/{name}/{recipe['seed']}")
    writer = Writer(recipe, Filler(recipe, bank, rng))
    target = rng.randint(MIN_TOKENS, MAX_TOKENS) * CHARS_PER_TOKEN
    due = schedule(recipe, rng)
    while writer.chars < target:
        if due and writer.chars / target >= due[0][0]:
            _, action, fact = due.pop(0)
            writer.fact(fact) if action == "fact" else writer.turn(fact["later"])
        else:
            writer.turn()
    return writer.session


def names(half: str) -> list[str]:
    return sorted(path.stem for path in (HERE / half).glob("*.json"))


def sessions(half: str) -> Iterator[Session]:
    """Generate all sessions of `tuning` or `set_aside`."""
    return (build(half, name) for name in names(half))


def main() -> None:
    for half in HALVES:
        for session in sessions(half):
            print(
                f"{half}/{session.id}: {len(session.messages)} messages, {session.tokens:,} tokens"
            )


if __name__ == "__main__":
    main()

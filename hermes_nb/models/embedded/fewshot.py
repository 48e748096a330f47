"""What a very small model is told before the conversation: a few lines, then examples to imitate.

It copies what it sees, names included: examples about an invented table made it ask for that
table. So they are about the user's own table and columns, and without one about plain arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.embedded.object_reader import REPLY

MOST_TOOLS = 4
MOST_VARIABLES = 6
MOST_COLUMNS = 20
_NUMBERS = ("int", "uint", "float", "Int", "UInt", "Float", "double", "decimal")
_WORDS = ("object", "str", "string", "category", "bool", "boolean", "large_string")


@dataclass(frozen=True, slots=True)
class SmallTool:
    """A tool as a small model sees it: its name and the one argument it takes."""

    name: str
    argument: str
    type: str = "string"
    note: str = ""


_KNOWN = (
    SmallTool("run_python", "code", note="runs code and shows the value of its last line"),
    SmallTool("list_files", "path"),
    SmallTool("read_file", "path"),
)


def small_tools(tools: Toolset) -> tuple[SmallTool, ...]:
    """Return the few tools a small model is offered, the most useful ones first."""
    known = [small for small in _KNOWN if (tool := tools.get(small.name)) and _fits(tool, small)]
    if len(known) < len(_KNOWN):
        names = {small.name for small in known}
        known += [small for tool in tools if tool.name not in names and (small := _only(tool))]
    return tuple(known[:MOST_TOOLS])


def _fits(tool: Tool, small: SmallTool) -> bool:
    properties = tool.parameters.get("properties", {})
    return small.argument in properties and {small.argument}.issuperset(_required(tool))


def _only(tool: Tool) -> SmallTool | None:
    """Return a tool that takes exactly one plain argument, None for any other."""
    properties = tool.parameters.get("properties", {})
    required = _required(tool) or (list(properties) if len(properties) == 1 else [])
    if len(required) != 1:
        return None
    kind = properties.get(required[0], {}).get("type")
    if kind not in ("string", "integer"):
        return None
    note = one_line(tool.description.split(".")[0], 60)
    return SmallTool(tool.name, required[0], kind, note)


def _required(tool: Tool) -> Sequence[str]:
    required: Sequence[str] = tool.parameters.get("required", ())
    return required


def say(name: str, value: object) -> str:
    """Return what the model answers with: one object, one key."""
    return json.dumps({name: value}, ensure_ascii=False, default=str)


def prefix(tools: Sequence[SmallTool], variables: Iterable[Variable]) -> tuple[Message, ...]:
    """Return the system message and the examples."""
    shown = shown_variables(variables)
    names = {tool.name for tool in tools}
    pairs: list[tuple[str, str]] = []
    if "run_python" in names:
        table = next((variable for variable in shown if variable.columns), None)
        pairs += _about(table) if table else _arithmetic()
    if "list_files" in names:
        pairs.append(("List the files here.", say("list_files", ".")))
    known = {tool.name for tool in _KNOWN}
    for tool in tools:
        if tool.name not in known:
            value: object = 4 if tool.type == "integer" else "abc"
            asked = tool.name.replace("_", " ").capitalize()  # a good name is a request: read_cell
            pairs.append((f"{asked} {value}.", say(tool.name, value)))
    pairs.append(("Hi there!", say(REPLY, "Hello! How can I help?")))
    examples = (m for q, a in pairs for m in (Message.user(q), Message.assistant(a)))
    return (Message.system(_instructions(tools, shown)), *examples)


def _instructions(tools: Sequence[SmallTool], variables: Sequence[Variable]) -> str:
    offered = [f'{{"{t.name}": {t.argument}}}' + (f" {t.note}" if t.note else "") for t in tools]
    lines = [
        "You are an agent in a Jupyter notebook. Answer with one JSON object: "
        + "; ".join([*offered, f'{{"{REPLY}": text}} answers'])
        + "."
    ]
    if any(tool.name == "run_python" for tool in tools):
        lines[0] += " Use run_python for every question about data."
    lines[0] += " After a Result, reply with it."
    if variables:
        lines.append("Variables:")
        lines += [described(variable) for variable in variables]
    return "\n".join(lines)


def shown_variables(variables: Iterable[Variable]) -> list[Variable]:
    """Return the variables worth a line: tables first, then in their own order."""
    return sorted(variables, key=lambda variable: not variable.columns)[:MOST_VARIABLES]


def described(variable: Variable) -> str:
    """Return a variable in one line, in the form that the notebook's context uses as well."""
    columns = list((variable.columns or {}).items())
    listed = ", ".join(f"{name} {dtype}" for name, dtype in columns[:MOST_COLUMNS])
    more = ", …" if len(columns) > MOST_COLUMNS else ""
    shape = f" {variable.shape}" if variable.shape else ""
    return one_line(
        f"- {variable.name}: {variable.type}{shape}" + (f" ({listed}{more})" if listed else ""), 700
    )


def _about(table: Variable) -> list[tuple[str, str]]:
    """Return examples with the table's own columns; what they cannot know has names like `x`."""
    name = table.name
    rows = table.shape.split(" ")[0].replace(",", "")
    numbers, words = _columns(table.columns or {})
    pairs = []
    if rows.isdecimal():
        pairs += [
            (f"How many rows are in {name}?", _python(f"len({name})")),
            (f"Result: {rows}", say(REPLY, f"There are {rows} rows.")),
        ]
    if numbers and words:
        pairs += _grouped(name, words[0], numbers[0], numbers[1 % len(numbers)])
    if numbers:
        above = f"({name}[{numbers[0]!r}] > 5).sum()"
        pairs.append((f"How many rows have {numbers[0]} above 5?", _python(above)))
    for column in (numbers or words or list(table.columns or {}))[:1]:
        missing = _python(f"{name}[{column!r}].isna().sum()")
        pairs.append((f"How many values are missing in {column}?", missing))
    incomplete = _python(f"{name}.isna().any(axis=1).sum()")
    return [*pairs, ("How many rows have a missing value?", incomplete)]


def _grouped(name: str, group: str, first: str, second: str) -> list[tuple[str, str]]:
    """Return examples of a value for each group, told in full, and of the group with the most.

    They look at two columns: with one alone the model asks for that one, whatever the question.
    """
    means = f"{name}.groupby({group!r})[{first!r}].mean()"
    largest = f"{name}.groupby({group!r})[{second!r}].mean().idxmax()"
    return [
        (f"What is the average {first} for each {group}?", _python(means)),
        ("Result: x: 1.5, y: 2.5", say(REPLY, "The averages are: x: 1.5, y: 2.5.")),
        (f"Which {group} has the largest average {second}?", _python(largest)),
    ]


def _python(code: str) -> str:
    return say("run_python", code)


def _columns(columns: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the columns that hold numbers and those that hold words, to group by."""
    numbers = [name for name, dtype in columns.items() if dtype.startswith(_NUMBERS)]
    words = [name for name, dtype in columns.items() if dtype.startswith(_WORDS)]
    return numbers, words


def _arithmetic() -> list[tuple[str, str]]:
    return [
        ("What is 3 + 4?", _python("3 + 4")),
        ("Result: 7", say(REPLY, "3 + 4 is 7.")),
        ('Use Python to make "abc" upper case.', _python("'abc'.upper()")),
    ]

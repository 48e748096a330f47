"""Tool calling for a very small model: its answer is constrained to one JSON object.

The model gets its own prompt, with examples from the user's data, at most four tools with one
argument each, and `reply` as an additional tool. It copies names from its examples: if they contain
an invented table, it asks for that table. The allowed answers depend on the previous ones: after an
error the model must call a tool again, and once it has the requested value, it must reply.

Measured with Qwen2.5-Coder-0.5B; see bench/embedded.py for the questions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hermes_nb.core.messages import Memo, Message
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.steering import ADDED
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.extras.local.object_reader import REPLY, ObjectReader
from hermes_nb.models.call_reader import ReplyReader

_EMPTY = re.compile(r"(?:np\.float64\()?nan\)?|Empty DataFrame\n.*|Series\(\[\], .*", re.DOTALL)
_SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")
_LONG = re.compile(r"(?<!\d)-?\d++\.\d{5,}")
_FOOTER = re.compile(r"(?:Name: .*, |Length: \d+, )*dtype: \S+")
_PAIR = re.compile(r"(\S+(?: \S+)*)\s{2,}(\S+)")


def plain(text: str) -> str:
    """Return a displayed value without NumPy's wrappers, superfluous digits and aligned columns."""
    if _EMPTY.fullmatch(text):
        return "nothing, no row matches"
    text = _LONG.sub(_rounded, _SCALAR.sub(r"\1", text))
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines[1:] or not _FOOTER.fullmatch(lines[-1]):  # a single line is not a Series
        return text
    pairs = [_PAIR.fullmatch(line) for line in lines[:-1]]
    if pairs[0] is None:
        pairs = pairs[1:]  # skip the index's name
    found = [f"{pair[1]}: {pair[2]}" for pair in pairs if pair]
    return ", ".join(found) if found and len(found) == len(pairs) else text


def _rounded(number: re.Match[str]) -> str:
    value = float(number[0])
    return repr(round(value, 4)) if abs(value) >= 1 else f"{value:.4g}"


MOST_TOOLS = 4
MOST_VARIABLES = 6
MOST_COLUMNS = 20
_NUMBERS = ("int", "uint", "float", "Int", "UInt", "Float", "double", "decimal")
_WORDS = ("object", "str", "string", "category", "bool", "boolean", "large_string")


@dataclass(frozen=True, slots=True)
class SmallTool:
    """A tool as presented to a small model."""

    name: str
    """Name of the tool."""
    argument: str
    """Name of its only argument."""
    type: str = "string"
    """JSON type of the argument."""
    note: str = ""
    """Short description for the prompt."""


_KNOWN = (
    SmallTool("run_python", "code", note="runs code and shows the value of its last line"),
    SmallTool("list_files", "path"),
    SmallTool("read_file", "path"),
)


def small_tools(tools: Toolset) -> tuple[SmallTool, ...]:
    """Return the few tools offered to a small model, most useful first."""
    known = [small for small in _KNOWN if (tool := tools.get(small.name)) and _fits(tool, small)]
    if len(known) < len(_KNOWN):
        names = {small.name for small in known}
        known += [
            small
            for tool in tools
            if tool.name not in names and (small := _single_argument_tool(tool))
        ]
    return tuple(known[:MOST_TOOLS])


def offered(tools: Toolset) -> Toolset:
    """Return the subset of tools offered to a small model."""
    return tools.only(*(small.name for small in small_tools(tools)))


def _fits(tool: Tool, small: SmallTool) -> bool:
    properties = tool.parameters.get("properties", {})
    return small.argument in properties and {small.argument}.issuperset(_required(tool))


def _single_argument_tool(tool: Tool) -> SmallTool | None:
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


def answer_json(name: str, value: object) -> str:
    """Return an answer in the model's required form: a JSON object with one key."""
    return json.dumps({name: value}, ensure_ascii=False, default=str)


def prefix(tools: Sequence[SmallTool], variables: Iterable[Variable]) -> tuple[Message, ...]:
    """Return the system message and the examples."""
    shown = shown_variables(variables)
    names = {tool.name for tool in tools}
    pairs: list[tuple[str, str]] = []
    if "run_python" in names:
        table = next((variable for variable in shown if variable.columns), None)
        pairs += _about(table) if table else _ARITHMETIC
    if "list_files" in names:
        pairs.append(("List the files here.", answer_json("list_files", ".")))
    known = {tool.name for tool in _KNOWN}
    for tool in tools:
        if tool.name not in known:
            value: object = 4 if tool.type == "integer" else "abc"
            # Tool names such as read_cell sound like requests.
            asked = tool.name.replace("_", " ").capitalize()
            pairs.append((f"{asked} {value}.", answer_json(tool.name, value)))
    pairs.append(("Hi there!", answer_json(REPLY, "Hello! How can I help?")))
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
    """Return the variables to describe in the prompt: tables first, then the others."""
    return sorted(variables, key=lambda variable: not variable.columns)[:MOST_VARIABLES]


def described(variable: Variable) -> str:
    """Return a one-line description of a variable, as in the notebook's context."""
    columns = list((variable.columns or {}).items())
    listed = ", ".join(f"{name} {dtype}" for name, dtype in columns[:MOST_COLUMNS])
    more = ", …" if len(columns) > MOST_COLUMNS else ""
    shape = f" {variable.shape}" if variable.shape else ""
    return one_line(
        f"- {variable.name}: {variable.type}{shape}" + (f" ({listed}{more})" if listed else ""), 700
    )


def _about(table: Variable) -> list[tuple[str, str]]:
    """Return examples for a table as (message, answer) pairs; unknown values are named like `x`."""
    name = table.name
    rows = table.shape.split(" ")[0].replace(",", "")
    columns = (table.columns or {}).items()
    numbers = [name for name, dtype in columns if dtype.startswith(_NUMBERS)]
    words = [name for name, dtype in columns if dtype.startswith(_WORDS)]
    pairs = []
    if rows.isdecimal():
        pairs += [
            (f"How many rows are in {name}?", _python(f"len({name})")),
            (f"Result: {rows}", answer_json(REPLY, f"There are {rows} rows.")),
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
    """Return three (message, answer) pairs about group averages and the largest of them.

    `first` and `second` are different columns if possible. If all examples used the same one, the
    model would use it for every question.
    """
    means = f"{name}.groupby({group!r})[{first!r}].mean()"
    largest = f"{name}.groupby({group!r})[{second!r}].mean().idxmax()"
    return [
        (f"What is the average {first} for each {group}?", _python(means)),
        ("Result: x: 1.5, y: 2.5", answer_json(REPLY, "The averages are: x: 1.5, y: 2.5.")),
        (f"Which {group} has the largest average {second}?", _python(largest)),
    ]


def _python(code: str) -> str:
    return answer_json("run_python", code)


_ARITHMETIC = (
    ("What is 3 + 4?", _python("3 + 4")),
    ("Result: 7", answer_json(REPLY, "3 + 4 is 7.")),
    ('Use Python to make "abc" upper case.', _python("'abc'.upper()")),
)


CONTEXT = "[Notebook context]"
"""First line of the context that the notebook adds to the user's message."""
MOST_TOKENS = 320
"""Maximum tokens in one answer."""
RESULT_CHARACTERS = 700
QUESTION_CHARACTERS = 3000
CONTEXT_LINES = 6
ERRORS_FORCED = 2
"""After up to this many consecutive errors, the model must call a tool again. After more, it may
reply."""
CALLS = 4
"""After this many calls for one question, the model must reply."""
CONVERSATIONS = 4
"""Number of conversations whose examples are cached; the oldest is dropped first."""
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_REFUSED = re.compile(r"was not run|cancelled|interrupted|skipped", re.IGNORECASE)
"""Errors that another call cannot fix."""
_PIECES = re.compile(r"\d|[^\x00-\x7f]|[A-Za-z]{1,5}|[^\sA-Za-z\d]|\n")


@dataclass(slots=True)
class _Conversation:
    """One conversation's prompt, and its messages as they were sent."""

    tools: tuple[SmallTool, ...]
    """The offered tools."""
    known: frozenset[str]
    """The start of each variable description in the prompt, to recognise known variables."""
    columns: str
    """Descriptions of the tables in the prompt; "" if there are none."""
    prefix: tuple[Message, ...]
    """The system message and the examples."""
    sent: Memo[Message] = field(default_factory=Memo)
    """The shortened form in which each message is sent."""


class Constrained:
    """The strategy for a model with a context window of `window` tokens.

    `variables` is called on a conversation's first request. Once it returns a table, its result is
    cached, so the prompt only grows and the server's prompt cache stays valid. Requests without
    tools are sent unchanged, except that long text is shortened.
    """

    def __init__(
        self, variables: Callable[[], Sequence[Variable]] = tuple, *, window: int = 4096
    ) -> None:
        self._variables = variables
        self._room = window - MOST_TOKENS
        self._sessions: dict[tuple[int, bool], tuple[object, _Conversation]] = {}
        self._arguments: dict[str, str] = {}
        self._replies = 0

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the small prompt, and the conversation in the same form as its examples.

        If a conversation exceeds the context window, its oldest messages are dropped until it fills
        half of the available space, so the rest stays unchanged for a while.
        """
        conversation = self._conversation(request)
        said = [message for message in request.messages if message.role != "system"]
        form = partial(_sent, conversation) if conversation.tools else _shortened
        sent = [conversation.sent.get(message, partial(form, message)) for message in said]
        first = conversation.prefix
        return (*first, *_trimmed(said, sent, self._room - sum(map(_tokens, first))))

    def fields(self, request: Request) -> Mapping[str, object]:
        """Return the schema of the next answer and the sampling parameters."""
        sampled = {"temperature": 0, "max_tokens": MOST_TOKENS, "cache_prompt": True}
        if not len(request.tools):
            return sampled
        tools = self._conversation(request).tools
        return {**sampled, "response_format": _format(_allowed(request, tools))}

    def reader(self) -> ReplyReader:
        """Return a reader for one object."""
        self._replies += 1
        return ObjectReader(self._arguments, f"call_{self._replies}")

    def _conversation(self, request: Request) -> _Conversation:
        """Return the prompt for the request's conversation, creating it for a new one.

        If a conversation started without a table, its prompt is recreated once, on the first
        question with a table. Reading the prompt again takes seconds, but examples without the
        user's columns give wrong answers ("the heaviest species is the blue whale").
        """
        begin = request.messages[0] if request.messages else request
        key = id(begin), len(request.tools) > 0
        found = self._sessions.get(key)
        asks = bool(request.messages) and request.messages[-1].role == "user"
        if found is not None and (found[1].columns or not asks):
            return found[1]
        tools = small_tools(request.tools)
        variables = shown_variables(self._variables()) if tools else []
        columns = "\n".join(described(variable) for variable in variables if variable.columns)
        if found is not None and not columns:
            return found[1]
        self._arguments.update((tool.name, tool.argument) for tool in tools)
        known = frozenset(_head(described(variable)) for variable in variables)
        own = tuple(_shortened(m) for m in request.messages if m.role == "system")
        first = prefix(tools, variables) if len(request.tools) else own
        made = _Conversation(tools, known, columns, first)
        self._sessions.pop(key, None)
        while len(self._sessions) >= CONVERSATIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[key] = begin, made  # the reference keeps its id from being reused
        return made


def _sent(conversation: _Conversation, message: Message) -> Message:
    if message.role == "user":
        return Message.user(_question(message.text, conversation.known))
    if message.role == "tool":
        return Message.user(_result(message, conversation.columns))
    said = (
        [answer_json(REPLY, message.text or "(stopped)")]
        if message.text or not message.calls
        else []
    )
    for call in message.calls:
        several = len(call.arguments) > 1
        value = dict(call.arguments) if several else next(iter(call.arguments.values()), "")
        said.append(answer_json(call.name, value))
    return Message.assistant("\n".join(said))


def _question(text: str, known: frozenset[str]) -> str:
    """Return the user's text, with variables from the context that are not in the prompt."""
    question, _, context = f"\n{text.removeprefix(ADDED)}".partition(f"\n{CONTEXT}\n")
    lines = [line for line in context.splitlines() if line.startswith("- ")]
    fresh = [line for line in lines if _head(line) not in known][:CONTEXT_LINES]
    return "\n".join([head_tail(question[1:].strip(), QUESTION_CHARACTERS), *fresh])


def _head(line: str) -> str:
    return line.partition(" (")[0]


def _result(message: Message, columns: str) -> str:
    text = message.text.strip() or "(no output)"
    if _wrong(message):
        error = head_tail(text.rpartition("\n")[2] or text, RESULT_CHARACTERS)
        return f"Error: {error}" + (f"\n{columns}" if "KeyError" in error else "")
    return "Result: " + head_tail(plain(text), RESULT_CHARACTERS)


def is_wrong(text: str, *, failed: bool) -> bool:
    """Return whether a result is an error, including exceptions printed by the code itself."""
    return failed or any(map(_EXCEPTION.match, text.rstrip().split("\n")[-3:]))


def _wrong(message: Message) -> bool:
    return is_wrong(message.text, failed=message.failed)


def _allowed(request: Request, tools: Sequence[SmallTool]) -> list[SmallTool]:
    reply = SmallTool(REPLY, "text")
    offered = [tool for tool in tools if tool.name in request.tools]
    results: list[Message] = []
    for message in request.messages:
        results = [] if message.role == "user" else [*results, message]
    results = [message for message in results if message.role == "tool"]
    if request.tool_choice == "none" or not offered or len(results) >= CALLS:
        return [reply]
    if not results:
        return [*offered, reply]
    if not _wrong(results[-1]):
        return [reply] if results[-1].name == "run_python" else [*offered, reply]
    if _REFUSED.search(results[-1].text):
        return [reply]
    errors = sum(map(_wrong, results))
    return offered if errors <= ERRORS_FORCED else [*offered, reply]


def _format(tools: Sequence[SmallTool]) -> Mapping[str, object]:
    """Return the response format for an object whose only key is the name of one of these tools."""
    objects = [
        {
            "type": "object",
            "properties": {tool.name: {"type": tool.type}},
            "required": [tool.name],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = {"oneOf": objects} if len(objects) > 1 else objects[0]
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": schema},
    }


def _shortened(message: Message) -> Message:
    text = message.text
    if len(text) <= QUESTION_CHARACTERS and not message.images:
        return message
    return replace(message, parts=Message.user(head_tail(text, QUESTION_CHARACTERS)).parts)


def _tokens(message: Message) -> int:
    """Return a message's approximate token count: one per digit, one or two per word."""
    return 5 + len(_PIECES.findall(message.text))


def _trimmed(said: Sequence[Message], sent: Sequence[Message], room: int) -> list[Message]:
    """Return the messages that fit in `room` tokens; the choice rarely changes as they grow."""
    sizes = [_tokens(message) for message in sent]
    kept: list[int] = []
    for index in range(len(sent)):
        kept.append(index)
        if sum(sizes[i] for i in kept) > room:
            kept = _newest(said, sizes, kept, room // 2)
    return [sent[index] for index in kept]


def _newest(
    said: Sequence[Message], sizes: Sequence[int], kept: Sequence[int], goal: int
) -> list[int]:
    """Drop the oldest messages until the goal is met, except the last question and exchange."""
    question = max((i for i in kept if said[i].role == "user"), default=-1)
    spared = max((i for i in kept if said[i].role != "tool"), default=-1)
    left = list(kept)
    for index in kept:
        whole = said[index].role == "user" or (index > question and said[index].role != "tool")
        if (sum(sizes[i] for i in left) <= goal and whole) or index >= spared:
            break
        if index != question:
            left.remove(index)
    return left

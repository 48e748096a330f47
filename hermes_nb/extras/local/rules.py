"""What the built-in model does without asking its weights: the kind of question, and its answer.

`next_step` looks at the conversation since the last prompt. It returns a tool to call, an answer
composed from a tool's result, or None if the model has to be asked. What cannot be found out is
said so, with the reason; neither code nor an error is ever an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.steering import ADDED
from hermes_nb.extras.local import file_questions, questions
from hermes_nb.extras.local.answers import spoken
from hermes_nb.extras.local.file_questions import Call, FileAnswer, PastCall
from hermes_nb.extras.local.prompting import CONTEXT, MOST_COLUMNS, is_wrong, plain

RUNS = ("try_python", "run_python")
"""Tools that compute an expression, best first."""
I_AM = (
    "I'm Hermes, an agent in this notebook. You haven't set up a model, so rules and a very small "
    "model on this machine answer."
)
_TALK = (
    (
        r"(?:hi|hello|hey|good (?:morning|afternoon|evening))(?: there| hermes)?",
        "Hello! Ask me about a table or a file.",
    ),
    (
        r"(?:thanks?|thank you|great|cool|nice|perfect|ok(?:ay)?|well done)\b.*",
        "You're welcome!",
    ),
    (r"(?:bye|goodbye|see you)\b.*", "Goodbye!"),
    (
        r"who (?:made|built|created|wrote|trained) you|who are you|what are you"
        r"|what(?:'s| is) your name|are you (?:chatgpt|gpt|claude|an? \w+)"
        r"|(?:what|which) (?:model|llm) (?:are you|is this|do you use)",
        I_AM,
    ),
    (
        r"what can you do|help|how can you help(?: me)?|what can i ask",
        "I can answer simple questions about a table (rows, missing values, means, the largest, by "
        "group), a variable or a file, and I say so when something is not there. A larger model "
        "can do more: see `%hermes key`.",
    ),
)
_ELSEWHERE = re.compile(
    r"\b(?:tomorrow|tonight|today|right now|next (?:week|month|year)|weather|forecast|share price"
    r"|stock price|exchange rate|latest news)\b"
)
_DATA = re.compile(
    r"\b(?:how many|number of|average|mean|median|total|sum|maximum|minimum|max|min|highest|lowest|"
    r"most|fewest|largest|smallest|the \w{4,}est|missing|correlat\w+|"
    r"rows?|columns?|per|percentage|share)\b"
)
_ORDER = re.compile(
    r"^\W*(?:please )?(?:write|create|make|plot|draw|add|explain|translate|summari[sz]e|fix|run|use"
    r"|rename|drop|replace|convert|sort|merge|load|read|import|define|implement|reverse|fit|train)\b"
)
_NAMED = re.compile(
    r"\b(?:variable|value of(?: the variable)?|(?:list|dict|table|array|series|dataframe|type)"
    r"(?: called| named| of)?|the length of|how long is)\s+"
    r"(?:the )?(?:list |table )?(?:called |named )?"
    r"[`'\"]?([A-Za-z_]\w*)[`'\"]?\s*(?=\?|\.|$|have|has|contain|is\b)"
)
_CELL = re.compile(r"\bcell (?:number |no\. ?|index )?(\d+)\b")
_FAILED = re.compile(r"A cell failed\. (Mend|Explain)")
"""The beginning of the prompts of `%hermes fix` and `%hermes explain`."""
_FAILED_CELL = re.compile(r"^Cell(?: (\S+))?:\n(`{3,})python\n(.*?)\n\2$", re.MULTILINE | re.DOTALL)
_UNKNOWN_COLUMN = (
    r"KeyError: ['\"](?P<column>\w+)['\"]|'DataFrame' object has no attribute '(?P<attribute>\w+)'"
)
_UNKNOWN_NAME = re.compile(rf"{_UNKNOWN_COLUMN}|NameError: name '(?P<variable>\w+)' is not defined")
RAN = "kept it and ran it:"
"""Part of edit_cell's result if the user chose *Keep and run*."""
_REFUSED = re.compile(r"was not run|cancelled|interrupted|skipped|declined", re.IGNORECASE)
_CODE_ASKED = re.compile(
    r"\b(?:code|function|script|program|class|regex|query|expression|snippet)\b"
)
_CODE = re.compile(
    r"```|Traceback|(?:^|\s)(?:import \w+|print\(|def \w+\()|\b\w+(?:Error|Exception)\b|\w\[['\"]|"
    r"\.(?:groupby|mean|sum|isna|head)\("
)


def asked(text: str) -> str:
    """Return a user message without the notebook's context and the mark of an added one."""
    return f"\n{text.removeprefix(ADDED)}".partition(f"\n{CONTEXT}\n")[0].strip()


def next_step(request: Request, variables: Sequence[Variable]) -> Call | FileAnswer | None:
    """Return the next call or the answer; None if the model has to be asked."""
    question, seen = _turn(request.messages)
    if request.tool_choice == "none" or not len(request.tools) or not question:
        return None
    if _FAILED.match(question):
        last = next(m.text for m in reversed(request.messages) if m.role == "user")
        step: Call | FileAnswer | None = _failed_cell(question, last, seen, variables)
    else:
        step = _step(question, seen, variables)
    if (
        step is None
        and seen
        and seen[-1].name in RUNS
        and not is_wrong(seen[-1].text, failed=seen[-1].failed)
    ):
        return FileAnswer(_result(seen[-1].text), verified=False)
    if isinstance(step, Call) and step.name in RUNS:
        name = next((name for name in RUNS if name in request.tools), "")
        return Call(name, step.arguments) if name else None
    if isinstance(step, Call) and step.name not in request.tools:
        return None
    return step


def _result(text: str) -> str:
    """Return the answer after code of the weights: a short value, or that the code ran."""
    value = plain(re.sub(r"\n?\[[^\]\n]*\]$", "", text).strip())
    if not value or "\n" in value or value.startswith("<") or is_code(value):
        return "I ran the code of the call above. Check it: it comes from a very small model."
    return f"The result is {value}"


def refused(reason: str) -> str:
    """Return the answer if something could not be found out."""
    return f"I couldn't find that: {reason}."


def is_code(text: str) -> bool:
    """Return whether a text that should be an answer is code or an error."""
    return _CODE.search(text) is not None


def checked(reply: Reply, request: Request, variables: Sequence[Variable] = ()) -> Reply:
    """Return a reply of the weights, which is not verified.

    It is never code, an error, or a statement about a table without a calculation.
    """
    if reply.message.calls or not reply.message.text.strip():
        return reply
    question, seen = _turn(request.messages)
    wrong = bool(seen) and is_wrong(seen[-1].text, failed=seen[-1].failed)
    message = reply.message
    lower = question.lower()
    about = f"{question} {message.text}"
    invented = not (seen or _ORDER.search(lower) or _CODE_ASKED.search(lower)) and any(
        questions.mentioned(about, each) for each in variables if each.columns
    )
    if wrong or invented or (is_code(message.text) and not _CODE_ASKED.search(lower)):
        tried = f"; {len(seen)} calculations failed" if wrong else ""
        reason = f"the built-in model is too small for this question{tried}"
        message = Message.assistant(refused(reason))
    return replace(reply, message=message, finish="unverified")


def _turn(messages: Sequence[Message]) -> tuple[str, list[PastCall]]:
    """Return the last prompt, and this turn's calls with their results."""
    question, seen, calls = "", list[PastCall](), dict[str, tuple[str, dict[str, object]]]()
    for message in messages:
        if message.role == "user":
            spelled = re.sub(r"\b([Ww]hat|[Ww]here|[Ww]ho)s\b", r"\1's", asked(message.text))
            question, seen, calls = spelled, [], {}
        calls |= {call.id: (call.name, dict(call.arguments)) for call in message.calls}
        if message.role == "tool" and message.call_id in calls:
            seen.append(PastCall(*calls[message.call_id], message.text.strip(), message.failed))
    return question, seen


def _step(
    question: str, seen: Sequence[PastCall], variables: Sequence[Variable]
) -> Call | FileAnswer | None:
    lower = re.sub(r"\s+", " ", question.lower()).strip(" .!?")
    if not seen:
        for pattern, answer in _TALK:
            if re.fullmatch(pattern, lower):
                return FileAnswer(answer)
        if _ELSEWHERE.search(lower):
            return FileAnswer("nothing here can look that up or predict it", found=False)
    elif _REFUSED.search(seen[-1].text) and seen[-1].failed:
        return FileAnswer("the tool was not allowed to run", found=False)
    sums_up = re.match(r"(?:please )?summari[sz]e\b", lower) and file_questions.about_files(
        question
    )
    if _ORDER.search(lower) and not sums_up:
        return None
    if found := _CELL.search(lower):
        return _cell(found[1], seen)
    if file_questions.about_files(question):
        return file_questions.step(question, seen)
    return _variable(question, seen, variables) or _table(question, seen, variables)


def _failed_cell(
    question: str, text: str, seen: Sequence[PastCall], variables: Sequence[Variable]
) -> Call | FileAnswer:
    """Repair or explain a misspelled name; `text` is the whole message, with the error."""
    names = [*_UNKNOWN_NAME.finditer(text)]
    cell = _FAILED_CELL.search(question)
    if not names or cell is None:
        return FileAnswer("the built-in model is too small for this error", found=False)
    kind, wrong = names[-1].lastgroup or "", names[-1][names[-1].lastgroup or 0]
    known = [v.name for v in variables]
    if kind != "variable":
        kind, known = "column", [name for v in variables for name in v.columns or {}]
    close = get_close_matches(wrong, known, 1)
    if not close:
        there = ", ".join(f"`{name}`" for name in known[:MOST_COLUMNS])
        listed = f" ({kind}s: {there})" if there else ""
        kind = kind.replace("column", "key or column")
        return FileAnswer(f"there is no {kind} `{wrong}`{listed}", found=False)
    cause = f"There is no {kind} `{wrong}`; the closest name is `{close[0]}`."
    identity, source = cell[1], cell[3]
    line = next((each for each in source.split("\n") if wrong in each), "")
    explain = _FAILED.match(question)
    if (explain and explain[1] == "Explain") or not identity or source.count(line) != 1:
        return FileAnswer(cause)
    if not seen:
        new = re.sub(rf"\b{wrong}\b", close[0], line)
        return Call("edit_cell", {"id": identity, "old": line, "new": new})
    if seen[-1].failed or is_wrong(seen[-1].text, failed=False):
        return FileAnswer(f"{cause} Look at the last call above: it did not work", found=False)
    if seen[-1].name == "edit_cell" and RAN not in seen[-1].text:
        return Call("run_cell", {"id": identity})
    return FileAnswer(f"{cause} I changed the cell and ran it.")


def _cell(number: str, seen: Sequence[PastCall]) -> Call | FileAnswer:
    if not seen:
        return Call("read_cells", {"range": number})
    if seen[-1].failed:
        return FileAnswer(f"there is no cell {number}", found=False)
    return FileAnswer(
        f"Cell {number}:\n\n"
        + "\n".join(f"> {line}" for line in seen[-1].text.split("\n")[:MOST_COLUMNS])
    )


def _variable(
    question: str, seen: Sequence[PastCall], variables: Sequence[Variable]
) -> Call | FileAnswer | None:
    names = {variable.name: variable for variable in variables}
    found = _NAMED.search(question)
    name = found[1] if found else ""
    if not name:
        words = re.findall(r"[A-Za-z_]\w*", question)
        whole = re.fullmatch(r"\W*what(?:'s| is) (?:in )?(\w+)\W*", question, re.IGNORECASE)
        name = next((w for w in words if whole and w == whole[1] and w in names), "")
    said = found is not None and re.search(r"\b(?:called|named)\b", found[0]) is not None
    filler = name.lower() in questions.FILLERS and not said
    if not name or filler or (name in names and names[name].columns):
        return None
    if name not in names:
        if "_" not in name and not re.search(
            r"\b(?:variable|called|named|table|list)\b", found[0] if found else ""
        ):
            return None
        columns = {column.lower() for each in variables for column in each.columns or {}}
        if name.lower() in columns:
            return None
        there = ", ".join(f"`{each}`" for each in list(names)[:8])
        return FileAnswer(
            f"there is no variable `{name}`" + (f" (variables: {there})" if there else ""),
            found=False,
        )
    if not seen:
        return Call("inspect_variable", {"name": name})
    if seen[-1].failed:
        return FileAnswer(f"`{name}` cannot be shown", found=False)
    head, _, body = seen[-1].text.partition("\n")
    shown = re.sub(r"^(?:items|values): .*\n", "", body)
    return FileAnswer(f"`{name}` is of type {head.partition(': ')[2]}: {shown[:500]}")


def _table(
    question: str, seen: Sequence[PastCall], variables: Sequence[Variable]
) -> Call | FileAnswer | None:
    table = _asked_about(question, variables)
    if table is None:
        lower = question.lower()
        missing = not any(each.columns for each in variables)
        if missing and re.search(r"\b(?:table|dataframe|rows|columns)\b", lower):
            return FileAnswer("there is no table in this notebook yet", found=False)
        return None
    read = questions.read(question, table)
    if isinstance(read, questions.Unknown):
        return FileAnswer(_unknown(read), found=False)
    if read is None or not seen:
        return Call(RUNS[0], {"code": read.code}) if read else None
    if not seen[-1].failed and (answer := spoken(read.says, seen[-1].text)):
        return FileAnswer(answer)
    why = "the calculation failed" if seen[-1].failed else "no row has a value for that"
    return FileAnswer(f"{why} (with `{table.name}`)", found=False)


def _asked_about(question: str, variables: Sequence[Variable]) -> Variable | None:
    """Return the pandas table that a question is about: the last one that explains most words."""
    scored = [(questions.mentioned(question, each), each) for each in variables if each.columns]
    best = max((score for score, _ in scored), default=0)
    if not scored or not (best or _DATA.search(question.lower())):
        return None
    table = next(each for score, each in reversed(scored) if score == best)
    return table if "pandas" in table.type or table.type == "DataFrame" else None


def _unknown(read: questions.Unknown) -> str:
    words = " or ".join(f"`{word}`" for word in read.words[:3])
    columns = list(read.table.columns or {})
    more = ", …" if len(columns) > MOST_COLUMNS else ""
    return (
        f"`{read.table.name}` has no column and no value for {words} "
        f"(columns: {', '.join(f'`{name}`' for name in columns[:MOST_COLUMNS])}{more})"
    )

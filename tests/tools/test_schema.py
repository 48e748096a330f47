from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hermes_nb.core.tools import Risk, ToolContext
from hermes_nb.tools.arguments import Checker, signature_text
from hermes_nb.tools.schema import as_tool, tool
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.support import context_for, run


class Task(TypedDict):
    goal: str
    budget: NotRequired[int]


@dataclass
class Box:
    left: int
    top: float = 0.5


@tool(toolset="demo", risk=Risk.WRITE, paths=["path"], cap=10)
def everything(  # noqa: PLR0917 - one of every kind
    context: ToolContext,
    path: str,
    count: Annotated[int, {"minimum": 1}] = 5,
    mode: Literal["a", "b"] = "a",
    tags: list[str] | None = None,
    tasks: list[Task] | None = None,
    box: Box | None = None,
    either: int | str = 3,
    table: dict[str, float] | None = None,
    anything: Any = None,
    flag: bool = False,
) -> str:
    """Do a thing
    over two lines.

    A longer story that is not for the model.

    Args:
        path (str): where it is,
            and where it goes
        count: how many

    Returns:
        text: nothing of this.
    """
    return repr((context.call.name, path, count, mode, tags, tasks, box, either, table, flag))


def test_a_function_becomes_a_tool():
    assert everything.name == "everything"
    assert everything.description == "Do a thing over two lines."
    assert (everything.toolset, everything.risk) == ("demo", Risk.WRITE)
    assert (everything.paths, everything.cap) == (("path",), 10)
    properties = everything.parameters["properties"]
    assert properties["path"] == {"type": "string", "description": "where it is, and where it goes"}
    count = {"type": "integer", "minimum": 1, "description": "how many", "default": 5}
    assert properties["count"] == count
    assert properties["mode"] == {"type": "string", "enum": ["a", "b"], "default": "a"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}
    assert properties["tasks"]["items"]["required"] == ["goal"]
    assert properties["box"]["properties"]["top"] == {"type": "number"}
    assert properties["either"] == {"type": ["integer", "string"], "default": 3}
    assert properties["table"]["additionalProperties"] == {"type": "number"}
    assert properties["anything"] == {}
    assert everything.parameters["required"] == ["path"]
    assert everything.parameters["additionalProperties"] is False
    assert "context" not in properties
    json.dumps(everything.parameters)


def test_values_arrive_as_the_function_expects_them():
    result = run(everything, path="x", count=2.0, box={"left": 1.0}, tags=None)
    assert result == "('everything', 'x', 2, 'a', None, None, Box(left=1, top=0.5), 3, None, False)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing `path`"),
        ({"pth": "x", "path": "x"}, "unknown argument `pth` (did you mean `path`?)"),
        ({"path": "x", "count": "ten"}, "`count` must be an integer, got 'ten' (str)"),
        ({"path": "x", "count": True}, "`count` must be an integer, got True (bool)"),
        ({"path": "x", "count": 0}, "`count` must be at least 1"),
        ({"path": "x", "mode": "c"}, '`mode` must be one of "a", "b", got \'c\''),
        ({"path": None}, "`path` must be a string, got None"),
        ({"path": "x", "either": 1.5}, "`either` must be an integer or a string"),
        ({"path": "x", "tags": [1]}, "`tags[0]` must be a string, got 1 (int)"),
        ({"path": "x", "tasks": [{"gaol": "y"}]}, "missing `tasks[0].goal`"),
        ({"path": "x", "tasks": [{"gaol": "y"}]}, "`tasks[0].gaol` (did you mean `goal`?)"),
        ({"path": "x", "flag": 1}, "`flag` must be true or false"),
        ({"path": 1, "count": "x", "mode": "c", "flag": 3, "zz": 0}, "; 2 more."),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_signature(arguments, said):
    problem = everything.check(arguments)
    assert said in problem
    assert "\n" not in problem
    assert 'Expected everything(path: string, count: integer = 5, mode: "a" | "b" = "a"' in problem


def test_a_bare_decorator_and_an_async_function():
    @tool
    async def wait(seconds: float = 0) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "done"

    assert inspect.iscoroutinefunction(wait.run)
    assert inspect.iscoroutinefunction(everything.run)
    assert run(wait) == "done"
    assert wait.check({"seconds": 1}) == wait.check({"seconds": 1.5}) == ""
    assert as_tool(wait) is wait
    assert as_tool(lambda: "x").parameters["properties"] == {}


@pytest.mark.parametrize("annotation", [set, complex, dict[int, str], object()])
def test_what_json_cannot_say_is_refused_when_the_tool_is_made(annotation):
    def function(x):
        """Take x."""

    function.__annotations__ = {"x": annotation}
    with pytest.raises(TypeError):
        tool(function)


def test_arguments_have_names():
    def function(*words: str) -> str:
        """Take words."""
        return ""

    with pytest.raises(TypeError, match="must be named"):
        tool(function)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from([*everything.parameters["properties"], "other"])


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_passes_the_check_runs_and_what_does_not_is_explained(arguments):
    problem = everything.check(arguments)
    if problem:
        assert "Expected everything(" in problem
    else:
        result = asyncio.run(everything.run(context_for(everything), arguments))
        assert isinstance(eval(result), tuple)


def test_tools_keep_their_descriptions_without_docstrings():
    """As under `PYTHONOPTIMIZE=2`."""
    code = (
        "from pathlib import Path; from hermes_nb.tools.files import files\n"
        "for each in files(Path()): print(each.description, each.parameters)"
    )
    kept, left_out = (
        subprocess.run([sys.executable, *o, "-c", code], capture_output=True, text=True, check=True)
        for o in ([], ["-OO"])
    )
    assert left_out.stdout == kept.stdout != ""


def test_any_schema_can_be_checked():
    schema = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "array"}]}, "y": {"enum": [1]}},
        "required": ["x"],
    }
    check = Checker("foreign", schema)
    assert check({"x": "a", "extra": 1}) == ""
    assert "`x` must be string | array" in check({"x": 1})
    assert signature_text("foreign", schema) == "foreign(x: string | array, y?: 1)"


@pytest.mark.parametrize(
    ("keywords", "value", "said"),
    [
        ({"pattern": "^a"}, "b", "`x` must be string, got 'b' (str)"),
        ({"oneOf": [{"minLength": 1}, {"type": "string"}]}, "b", "`x` must be string"),
        ({"pattern": "("}, "b", ""),
        ({"pattern": "("}, 1, "`x` must be a string"),
    ],
)
def test_what_only_the_validator_knows_is_said_by_it(keywords, value, said):
    """Of a schema that is broken the plain part is judged."""
    schema = {"type": "object", "properties": {"x": {"type": "string", **keywords}}}
    assert Checker("foreign", schema)({"x": value}).startswith(said)
    assert bool(Checker("foreign", schema)({"x": value})) is bool(said)

"""The kernel toolset, used by an agent that follows a script."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Risk, ToolContext
from hermes_nb.notebook.run_tools import kernel_tools

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)

pytestmark = pytest.mark.usefixtures("signals")


@pytest.fixture
def use(shell):
    """Return a function that runs one tool and returns its text."""

    def use(name, /, timeout=10.0, sees=False, emit=lambda _: None, **arguments):
        tool = kernel_tools(shell, timeout=timeout).get(name)
        context = ToolContext(
            call=ToolCall(id="1", name=name, arguments=arguments), emit=emit, sees_images=sees
        )
        result = asyncio.run(tool.run(context, arguments))
        return result if isinstance(result, str) else result.text

    return use


def test_the_toolset(shell):
    tools = kernel_tools(shell)
    assert [t.name for t in tools] == [
        "run_python",
        "try_python",
        "inspect_variable",
        "list_variables",
    ]
    assert [t.risk for t in tools] == [Risk.EXECUTE] * 2 + [Risk.READ] * 2
    assert all(t.toolset == "kernel" and t.exclusive and len(t.description) < 100 for t in tools)
    assert tools.get("run_python").describe({"code": "x = 1\ny = 2"}).startswith("x = 1")


def test_a_picture_is_for_a_model_that_sees(shell):
    code = f"from IPython.display import Image\nimport base64\nImage(base64.b64decode({PIXEL!r}))"
    call = ToolCall(id="1", name="run_python", arguments={"code": code})
    tool = kernel_tools(shell).get("run_python")
    for sees, note in ((True, "[image/png 1x1]"), (False, "[image/png 1x1, not shown]")):
        context = ToolContext(call=call, sees_images=sees)
        shown = asyncio.run(tool.run(context, {"code": code}))
        assert note in shown.text
        assert bool(shown.images) is sees


def test_run_python_shows_values_and_names_new_and_changed_variables(use):
    assert use("run_python", code="print('a')\n1 + 1") == "a\n2"
    assert use("run_python", code="pass") == "(no output)"
    assert use("run_python", code="x = 5\nl = [1]") == "[new x = 5; l: list, 1 item]"
    assert use("run_python", code="x = 6") == "[changed x = 6]"
    many = use("run_python", code="\n".join(f"v{i} = {i}" for i in range(20)))
    assert many.endswith("v7 = 7; 12 more]")


def test_an_error_is_raised_with_what_was_shown(use):
    with pytest.raises(ToolError) as error:
        use("run_python", code="print('before')\nx = 1\n1/0")
    text = str(error.value)
    assert text.startswith("before\nZeroDivisionError: division by zero\n")
    assert "----> 3 1/0" in text and "[new x = 1]" in text
    with pytest.raises(ToolError, match=r"TimeLimit: stopped after 0\.2 s"):
        use("run_python", timeout=0.2, code="print('x')\nwhile True: pass")


@pytest.mark.filterwarnings("ignore:To exit")
def test_errors_without_a_traceback(use):
    for code, gist in [
        ("%nope", "UsageError"), ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup"),
    ]:  # fmt: skip
        with pytest.raises(ToolError, match=gist):
            use("run_python", code=code)


def test_inspect_variable(use, shell):
    with pytest.raises(ToolError, match="there are no variables yet"):
        use("inspect_variable", name="x")
    shell.run_cell("penguins = {'a': 1}\nimport math\n_x = 1")
    assert use("inspect_variable", name="penguins").startswith("penguins: dict, 1 item\n")
    assert use("inspect_variable", name="math").startswith("math: module")
    for name, gist in [
        ("pengiuns", "near it: penguins"), ("penguins['a']", "use run_python"),
        ("_x", "no variable"),
    ]:  # fmt: skip
        with pytest.raises(ToolError, match=gist):
            use("inspect_variable", name=name)


def test_list_variables(use, shell):
    assert use("list_variables") == "(no variables)"
    shell.run_cell("x = 1\nl = [1, 2]")
    assert use("list_variables") == "x = 1\nl: list, 2 items"
    shell.run_cell("\n".join(f"v{i} = {i}" for i in range(100)))
    lines = use("list_variables").splitlines()
    assert lines[0] == "(42 older ones left out)" and len(lines) == 61
    pytest.importorskip("pandas")
    shell.run_cell("import pandas as pd\ndf = pd.DataFrame({'a': [1], 'b': [.5]})")
    assert use("list_variables").endswith("df: pandas DataFrame, 1 x 2: a int64, b float64")

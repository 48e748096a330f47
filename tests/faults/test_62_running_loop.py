"""Async cells, nested loops, several turns at once: each works, or says in one line why not."""

from __future__ import annotations

import pytest

from tests.faults.cells import calls, says
from tests.loopback import Reply, chunk, event, pause, stall, stream, text_chunks

pytestmark = pytest.mark.kernel


def test_62_awaiting_code(cells):
    result = cells.ask(
        calls(("run_python", {"code": "import asyncio\nawait asyncio.sleep(0)\n'awaited'"})),
        calls(("run_python", {"code": "x = [n async for n in agen()]\nx"})),
        calls(("run_python", {"code": "asyncio.run(asyncio.sleep(0))"})),
        calls(("run_python", {"code": "asyncio.get_running_loop().is_running()"})),
        calls(("run_python", {"code": "task = asyncio.ensure_future(asyncio.sleep(0, 'later'))"})),
        calls(("run_python", {"code": "await task"})),
        says("Awaited."),
        options="--approve all",
    )
    assert result.status == "ok", result.error
    awaited, undefined, nested, running, _, later = cells.results
    assert "awaited" in awaited
    assert "NameError" in undefined
    assert "cannot be called from a running event loop" in nested
    assert "True" in running and "later" in later


def test_62_in_an_async_cell(cells):
    cells.plays(says("One."), says("Two."))
    result = cells.run(
        "import asyncio\nawait asyncio.sleep(0)\n%hermes first\n"
        "await asyncio.sleep(0)\n%hermes second\nprint('behind')"
    )
    assert result.status == "ok", result.error
    assert "One." in result.markdown and "Two." in result.markdown
    assert "behind" in result.text
    assert cells.sent[-1]["content"].startswith("second")


def test_62_in_a_loop_a_branch_and_a_function(cells):
    cells.plays(says("Yes."))
    result = cells.run(
        "for n in range(2):\n    if n:\n        %hermes in a branch\nprint('behind')"
    )
    assert result.status == "ok", result.error
    assert len(cells.server.exchanges) == 1 and "behind" in result.text
    cells.plays(says("Yes."))
    result = cells.run("async def ask():\n    %hermes in a function\nawait ask()")
    assert result.status == "ok", result.error
    assert "Yes." in result.markdown
    cells.plays(says("Yes."))
    result = cells.run("def ask():\n    %hermes in a plain function\nask()")
    assert result.status == "error", "there is nothing to await it"
    assert cells.server.exchanges == []


def test_62_a_script_inside_a_cell(cells):
    cells.plays(says("From the inside."))
    code = (
        "from hermes_nb import Hermes\n"
        f"with Hermes('m', base_url={cells.server.url!r}) as inner:\n"
        "    print(inner.ask('hello').text)\n"
        "async with Hermes('m', base_url={url!r}) as inner:\n"
        "    print([type(e).__name__ async for e in inner.stream('hello')][-1])"
    ).replace("{url!r}", repr(cells.server.url))
    result = cells.run(code)
    assert result.status == "ok", result.error
    assert "From the inside." in result.text and "TurnEnded" in result.text


def test_62_two_turns_at_once(cells):
    """The second is refused in one line; the first does not notice."""
    slow = stream(text_chunks("The first."))
    slow.steps = [*slow.steps[:2], pause(1.0), *slow.steps[2:]]
    cells.plays(slow)
    cell = (
        "import asyncio\nip = get_ipython()\n"
        "asked = [ip.run_line_magic('hermes', f'number {n}') for n in range(3)]\n"
        "told = await asyncio.gather(*asked, return_exceptions=True)\n"
        "print([type(each).__name__ for each in told])"
    )
    result = cells.run(cell)
    assert result.status == "ok", result.error
    assert result.text.count("SessionBusy") == 2
    assert "The first." in result.markdown
    assert len(cells.server.exchanges) == 1


def test_62_cancelled_by_its_own_cell(cells):
    """`asyncio.timeout` around a turn ends it as a stop does."""
    cells.plays(Reply([event(chunk({"content": "The beginning"})), stall]))
    cell = (
        "import asyncio\n"
        "try:\n    async with asyncio.timeout(1):\n        %hermes tell me\n"
        "except TimeoutError: print('time is up')"
    )
    result = cells.run(cell, timeout=90)
    assert result.status == "ok", result.error
    assert "time is up" in result.text
    assert "The beginning" in str(cells.goes_on())


def test_62_without_autoawait(cells):
    """Where IPython does not await, the magic cannot run; it says so, and works again after."""
    cells.plays(says("Hello."))
    cells.run("%autoawait off")
    result = cells.run("%hermes hello")
    cells.run("%autoawait on")
    assert result.status == "error"
    assert len(result.error["traceback"]) < 12

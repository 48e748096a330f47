"""Two kernels edit one notebook: the second is told of a conflict, and nobody's cell is lost."""

from __future__ import annotations

import pytest

from tests.faults.notebooks import valid, written
from tests.notebook.conftest import Kernel

AGENT = """
from pathlib import Path
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.cell_tools import notebook_tools
async def document(): return FileDocument(Path({path!r}))
tools = notebook_tools(ip, document)
async def use(name, **arguments):
    context = ToolContext(call=ToolCall(id='1', name=name, arguments=arguments))
    try:
        result = await tools.get(name).run(context, arguments)
        print(getattr(result, 'text', result))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def kernels():
    two = [Kernel(), Kernel()]
    yield two
    for kernel in two:
        kernel.close()


@pytest.mark.slow
def test_the_second_sees_a_conflict_and_clobbers_nothing(kernels, tmp_path):
    path = written(tmp_path / "shared.ipynb", "a = 1", "b = 2")
    first, second = kernels
    for kernel in kernels:
        assert not kernel.run(AGENT.format(path=str(path))).error
        assert "a = 1" in kernel.run("await use('read_cells')").text
    assert "edited" in first.run("await use('edit_cell', id='cell0', new='a = 10')").text
    answer = second.run("await use('edit_cell', id='cell0', new='a = 20')").text
    assert answer.startswith("CellConflict")
    assert "a = 10" in answer
    assert "".join(valid(path)["cells"][0]["source"]) == "a = 10"
    # Both at once: the lock puts one behind the other, every cell of either is there.
    many = "for n in range(20): await use('insert_cell', source=f'{who} {n}')"
    sent = [
        k.client.execute(f"who = {name!r}\n{many}") for k, name in zip(kernels, "AB", strict=True)
    ]
    for kernel, message in zip(kernels, sent, strict=True):
        while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message:
            pass
    sources = ["".join(cell["source"]) for cell in valid(path)["cells"]]
    assert sorted(sources) == sorted(
        ["a = 10", "b = 2", *(f"{who} {n}" for who in "AB" for n in range(20))]
    )

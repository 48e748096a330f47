"""The bridge into the open notebook: every operation, and what users do meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.harness import EXTENSION, write

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
MARKDOWN = {"cell_type": "markdown", "source": "# Title"}


def test_the_extension_is_installed_and_enabled():
    jupyter = Path(sys.executable).with_name("jupyter")
    listed = subprocess.run(
        [jupyter, "labextension", "list"], capture_output=True, text=True, check=True
    )
    line = next(x for x in (listed.stdout + listed.stderr).splitlines() if "hermes-nb" in x)
    assert "enabled" in line and "OK" in line and "hermes_nb" in line
    assert json.loads((EXTENSION / "package.json").read_text())["name"] == "hermes-nb"


@BOTH
def test_every_operation_and_the_saved_file(open_notebook, server):
    notebook = open_notebook("a = 1", MARKDOWN, "b = 2")
    notebook.bridge()
    assert notebook.value("[info.path, info.cells, info.widgets]") == [notebook.name, 4, True]
    assert notebook.value("[c.source for c in await document.cells()][1:]") == notebook.sources()
    made = notebook.value(
        "stamp = {'hermes': {'turn': 1}}\n"
        "new = await document.insert('c = 3\\nc', after='cell1', metadata=stamp)\n"
        "cell_of(new)"
    )
    assert made["index"] == 2
    notebook.kernel(
        "await document.insert('*hi*', index=1, type='markdown')\n"
        "new = await document.replace(new.id, 'c = 33\\nc 🦊', seen=new.hash)\n"
        "assert new.hash == source_hash('c = 33\\nc 🦊')\n"
        "await document.delete('cell1', seen=(await document.get('cell1')).hash)\n"
        "top = await document.move('cell3', after=None)\n"
        "assert top.index == 0, top\n"
        "assert (await document.move('cell3', after='driver')).index == 1\n"
        "outputs = [{'output_type': 'stream', 'name': 'stdout', 'text': ['one\\n', 'two\\n']},\n"
        "  {'output_type': 'display_data', 'metadata': {}, 'data': {'text/html': '<b>bold</b>'}}]\n"
        "written = await document.set_outputs(new.id, outputs)\n"
        "assert written.output_count == 2 and written.execution_count is None\n"
        "await document.save()"
    )
    assert notebook.sources() == ["b = 2", "*hi*", "c = 33\nc 🦊", "# Title"]
    saved = notebook.saved()
    assert [cell.source for cell in saved.cells][1:] == notebook.sources()
    cell = saved.cells[3]
    assert cell.metadata.hermes == {"turn": 1}
    assert cell.outputs[0].text == "one\ntwo\n"
    assert notebook.page.inner_html(".jp-OutputArea-output b") == "bold"
    assert not notebook.page.query_selector(".jp-Dialog")


def test_refusals_say_what_to_do(open_notebook):
    frozen = {"cell_type": "code", "source": "f", "metadata": {"deletable": False}}
    notebook = open_notebook("a = 1", frozen)
    notebook.bridge()
    notebook.kernel("""
async def refused(call):
    try: await call
    except ToolError as error: return [type(error).__name__, str(error)]
""")

    def refused(call):
        return notebook.value(f"await refused({call})")

    missing = refused("document.replace('nope', 'x', seen='1')")
    assert "no cell nope" in missing[1] and "list its cells again" in missing[1]
    assert "not deletable" in refused("document.delete('cell2', seen=source_hash('f'))")[1]
    assert "is running" in refused("document.move('driver', after=None)")[1]
    assert "no operation frobnicate" in refused("frontend.call('frobnicate')")[1]
    assert "no operation toString" in refused("frontend.call('toString')")[1]
    assert refused("document.replace('cell1', 'x', seen='1')")[0] == "CellConflict"
    notebook.evaluate("nb.context._contentsModel.writable = false")
    assert "read-only" in refused("document.save()")[1]
    notebook.kernel("import hermes_nb.notebook.frontend as module; module.PROTOCOL += 1")
    assert "reload the page" in refused("frontend.call('info')")[1]
    assert notebook.value("await frontend.probe()") is None
    assert notebook.sources() == ["a = 1", "f"]


def test_a_cell_the_user_changed_is_left_alone_and_unsaved_text_survives(open_notebook):
    notebook = open_notebook("a = 1", "b = 2")
    notebook.bridge()
    notebook.kernel("seen = await document.get('cell1')")
    notebook.evaluate("m.cells[1].updateSource(0, 0, '# mine, unsaved\\n')")
    text = notebook.kernel(
        "try: await document.replace('cell1', 'clobbered', seen=seen.hash)\n"
        "except CellConflict as error: print(error)"
    )
    assert "# mine, unsaved\na = 1" in text
    # An edit elsewhere saves nothing behind the user's back and loses nothing.
    notebook.kernel("await document.insert('agent', after='cell2')")
    assert notebook.sources() == ["# mine, unsaved\na = 1", "b = 2", "agent"]
    assert "mine" not in (notebook.server.root / notebook.name).read_text()
    notebook.command("docmanager:save")
    notebook.until(lambda: "mine" in (notebook.server.root / notebook.name).read_text())
    assert not notebook.page.query_selector(".jp-Dialog")
    assert len(notebook.saved().cells) == 4


def test_undo_takes_back_one_edit_and_not_what_was_typed_around_it(open_notebook):
    notebook = open_notebook("a = 1\nb = 2")
    notebook.bridge()
    notebook.kernel(
        "await document.insert('first')\nawait document.insert('second')\n"
        "await document.replace('cell1', 'a = 1\\nb = 22', seen=source_hash('a = 1\\nb = 2'))"
    )
    # A change of the user's within the time in which the editor merges steps.
    notebook.evaluate("m.cells[1].updateSource(0, 0, '#')")
    undo_in_cell = "m.cells[1].undo()"
    notebook.evaluate(undo_in_cell)
    assert notebook.sources()[0] == "a = 1\nb = 22"
    notebook.evaluate(undo_in_cell)
    assert notebook.sources()[0] == "a = 1\nb = 2"
    notebook.command("notebook:undo-cell-action")
    assert notebook.sources() == ["a = 1\nb = 2", "first"]
    notebook.command("notebook:undo-cell-action")
    assert notebook.sources() == ["a = 1\nb = 2"]


def test_two_notebooks_on_one_kernel_are_told_apart(open_notebook, server):
    first = open_notebook("one = 1")
    session = next(s for s in server.request("/api/sessions") if s["path"] == first.name)
    name = f"other-{first.name}"
    write(server.root / name, ["two = 2"])
    kernel = {"id": session["kernel"]["id"]}
    body = {"path": name, "name": name, "type": "notebook", "kernel": kernel}
    server.request("/api/sessions", "POST", body)
    # In the same page only the first connection to a kernel has comms; it answers for both.
    first.bridge()
    first.command("docmanager:open", path=name)
    shown = "window.jupyterapp.shell.currentWidget?.context?.path"
    replace(first, name=name).ready()
    assert first.value("(await frontend.probe()).path") == name
    first.kernel("await LiveDocument(frontend, frontend.page).insert('for two')")
    assert first.sources() == ["two = 2", "for two"]
    first.command("docmanager:open", path=first.name)
    first.page.wait_for_function(f"{shown} === {first.name!r}")
    assert first.value("(await frontend.call('info'))['path']") == first.name
    assert first.sources() == ["one = 1"]


def test_of_two_tabs_one_answers_and_the_other_takes_over(open_notebook, server, browser):
    first = open_notebook("x = 1")
    first.bridge()
    second = type(first)(server, browser.new_context().new_page(), first.name)
    second.show(first.name)
    first.kernel("await document.insert('once')")
    assert first.sources() == ["x = 1", "once"]
    assert second.sources() == ["x = 1"]
    assert second.value("(await frontend.probe()).client != info.client") is True
    second.kernel("await document.insert('in the second')")
    assert second.sources() == ["x = 1", "in the second"]
    second.page.context.close()
    first.kernel("await document.insert('again')", timeout=60)
    assert first.sources() == ["x = 1", "once", "again"]


@BOTH
def test_after_a_reload_and_a_restart_it_still_works(open_notebook, server):
    notebook = open_notebook("x = 1")
    notebook.bridge()
    notebook.kernel("heard = []\nfrontend.listeners.append(heard.append)\nawait document.save()")
    notebook.page.reload()
    notebook.ready()
    # The page says hello by itself, after its end was heard of; running a cell only looks.
    hello = "bool(heard and heard[-1]) and heard[-1].name != info.name"
    notebook.until(lambda: notebook.value(hello))
    notebook.kernel("await document.insert('after the reload')")
    assert notebook.sources() == ["x = 1", "after the reload"]
    notebook.evaluate("nb.sessionContext.restartKernel()")
    notebook.ready()
    notebook.bridge()
    notebook.kernel("await document.insert('after the restart')")
    assert notebook.sources()[1:] == ["after the reload", "after the restart"]


def test_a_closed_page_and_a_cancelled_call_leave_nothing_behind(open_notebook):
    notebook = open_notebook("x = 1")
    notebook.bridge()
    text = notebook.kernel("""
import asyncio
task = asyncio.ensure_future(frontend._channel.ask('nobody', 'info', {}, 30))
await asyncio.sleep(0.05)
task.cancel()
await asyncio.gather(task, return_exceptions=True)
began = time.monotonic()
try: await frontend._channel.ask('nobody', 'info', {}, 0.3)
except TimeoutError: pass
print(frontend._channel._pending, time.monotonic() - began < 20)
""")
    assert text.strip() == "{} True"


def test_a_sketch_brings_the_kinds_of_outputs_and_nothing_of_them(open_notebook):
    notebook = open_notebook("1", "2", "3", MARKDOWN)
    notebook.bridge()
    notebook.kernel(
        "async def show(cell, *outputs): await document.set_outputs(cell, outputs)\n"
        "def shown(**data): return {'output_type': 'display_data', 'metadata': {}, 'data': data}\n"
        "await show('cell1', shown(**{'image/png': 'x' * 2_000_000, 'text/plain': 'Figure'}))\n"
        "await show('cell2', shown(**{'text/html': '<table>'}), shown(**{'text/plain': 'y'}))\n"
        "error = {'output_type': 'error', 'ename': 'E', 'evalue': 'v', 'traceback': []}\n"
        "await show('cell3', error)"
    )
    lines = notebook.kernel(
        "from hermes_nb.notebook.document.outline import outline\n"
        "cells = await document.sketch()\n"
        "assert len(str(cells)) < 4000\n"
        "print(outline(cells))"
    ).splitlines()
    assert lines[1].endswith("-> plot")
    assert lines[2].endswith("-> table, output")
    assert lines[3].endswith("-> error")
    assert "->" not in lines[4]


def test_the_cell_above_is_the_last_that_is_no_message(open_notebook):
    look = (
        "from hermes_nb.core.tools import Place\n"
        "from hermes_nb.notebook.access import NotebookAccess\n"
        "from hermes_nb.notebook.kernel_settings import KernelSettings\n"
        "desk = NotebookAccess(get_ipython(), KernelSettings(), moved=lambda *_: None)\n"
        "cell = await desk.cell_above(Place())\n"
        "print(cell and cell.source)"
    )
    notebook = open_notebook("x = 1", MARKDOWN, "%%hermes\nhello", " ", look)
    assert notebook.run(5)[0]["text"] == "# Title\n"
    assert notebook.kernel(look) == "None\n"  # nothing is above the first cell


def test_large_outputs_do_not_cross(open_notebook):
    notebook = open_notebook("", "print('small')")
    notebook.run(2)
    large = "{output_type: 'stream', name: 'stdout', text: 'x'.repeat(3000001)}"
    notebook.evaluate(f"m.cells[1].setOutputs([{large}])")
    notebook.bridge()
    sizes = notebook.value(
        "found = await document.cells(outputs=True)\n"
        "[[len(o['text']), o.get('hermes_clipped', 0)] for c in found[1:] for o in c.outputs]"
    )
    assert sizes[1] == [6, 0]
    assert 1_000_000 <= sizes[0][0] < 1_000_100
    assert 2_000_000 < sizes[0][1] < 2_000_100
    text = notebook.kernel(
        "try: await document.set_outputs('cell1', found[1].outputs)\n"
        "except ToolError as error: print(error)"
    )
    assert "were truncated when they were read" in text


def test_the_notebook_is_found_by_what_the_page_says(open_notebook):
    notebook = open_notebook("x = 1")
    notebook.bridge()
    notebook.evaluate("nb.context.rename(a)", "renamed.ipynb")
    notebook.name = "renamed.ipynb"
    found = notebook.kernel(
        "from hermes_nb.notebook.access import notebook_path\n"
        "print(notebook_path({}, open_path=(await frontend.probe()).path))"
    )
    assert found.strip() == str(notebook.server.root / "renamed.ipynb")


@BOTH
def test_a_panel_shows_a_live_widget_at_the_side(open_notebook, server):
    notebook = open_notebook("x = 1")
    notebook.bridge()
    notebook.kernel(
        "import ipywidgets\nwidget = ipywidgets.HTML('before')\n"
        "made = await frontend.call('panel', model_id=widget.model_id, title='Hermes')\n"
        "assert made == {'id': f'hermes-nb-panel-{widget.model_id}'}, made"
    )
    notebook.page.wait_for_selector(".hermes-nb-panel >> text=before")
    notebook.kernel("widget.value = 'after'")
    notebook.page.wait_for_selector(".hermes-nb-panel >> text=after")
    notebook.shot(f"panel-{server.app}")

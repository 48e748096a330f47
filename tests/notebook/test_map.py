"""`%hermes map` in this process and in real kernels: its bar, its table, its end, its restart."""

from __future__ import annotations

import asyncio
import re
import sys
import time

import nbformat
import pytest
from hermes_nb.agent.fanout.inputs import inputs_of
from hermes_nb.agent.fanout.maps import Fanout, MapPlan
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.notebook.commands.jobs import MapView, finished, running
from hermes_nb.notebook.commands.table import Completions

from tests.faults.cells import served_kernel
from tests.loopback import Loopback, Reply, pause, says, stall
from tests.notebook.desks import Desk
from tests.patience import STOPS_WITHIN


def records(table):
    """Return the rows of a map's table, which is a DataFrame where pandas is in use."""
    return table if isinstance(table, list) else table.to_dict("records")


def asked(server, since):
    """Return the inputs that the model was asked about, from a number of requests on."""
    said = (body["messages"][-1]["content"] for body in server.bodies[since:])
    return {re.search(r'source="([^"]*)"', text)[1] for text in said}


def play(request):
    """Return an answer made of the input's last line."""
    return "about " + request.messages[-1].text.rpartition("\n<")[0].rpartition("\n")[2]


@pytest.fixture
def desk(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for n in range(4):
        (tmp_path / f"n{n}.md").write_text(f"note {n}")
    desk = Desk(shell).plays(*[play] * 500, name="scripted")
    yield desk
    desk.agent.close()


def test_a_table_is_shown_and_kept(desk, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert desk('map --into t "What is it?" *.md') == ""
    table = desk.shell.user_ns["t"]
    assert [row["answer"] for row in table] == [f"about note {n}" for n in range(4)]
    assert "| n0.md | done | about note 0 |" in table._repr_markdown_()
    assert "n3.md" in capsys.readouterr().out
    assert desk('map --into t "What is it?" n?.md') == ""
    assert "4 from an earlier run" in capsys.readouterr().out
    assert len(desk.model.requests) == 4
    assert desk.model.requests[0].messages[-1].text.startswith("What is it?\n\n")


def test_the_table_is_a_dataframe_where_pandas_is_in_use(desk):
    pandas = pytest.importorskip("pandas")
    desk('map --into t "What is it?" *.md')
    table = desk.shell.user_ns["t"]
    assert isinstance(table, pandas.DataFrame)
    assert list(table["answer"]) == [f"about note {n}" for n in range(4)]
    assert list(table.columns[:3]) == ["input", "status", "answer"]


def test_notebooks_are_read_with_what_they_show(desk, tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# Whales"),
        nbformat.v4.new_code_cell(
            "count()", outputs=[nbformat.v4.new_output("stream", text="seven\n")]
        ),
    ]
    nbformat.write(notebook, tmp_path / "a.ipynb")
    desk('map "What is it?" a.ipynb')
    text = desk.model.requests[0].messages[-1].text
    assert "# Whales" in text and "count()" in text and "seven" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('map "What?" nothing*.md', "there is no file 'nothing"),
        ('map --parallel 0 "What?" *.md', "--parallel: invalid integer above 0"),
        ('map --max-cost x "What?" *.md', "invalid number above 0"),
        ('map --into 1x "What?" *.md', "not a variable name"),
        ('map "What? *.md', "quotation"),
        ('map --executor ipyparallel "What?" *.md', "omit --executor"),
        ("map --retri", "did you mean `%hermes map --retry`"),
        ('map "What?"', "no inputs; pass files"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(desk, line, said):
    with pytest.raises(ConfigError, match=None) as caught:
        desk(line)
    assert said in str(caught.value)
    assert not desk.model.requests


def test_help_and_the_names_of_options(desk):
    for line in ("map", "map --help"):
        shown = desk(line)
        assert '%hermes map "One sentence' in shown and "--max-cost USD" in shown
        assert shown.startswith('`%hermes map "PROMPT" FILES… [--into NAME]')
    bell = type("Bell", (), {"awake": desk.agent})()
    complete = Completions(bell)._argument
    assert complete("map", "--re") == ("--re", ["--retry"])
    assert complete("map", "--executor pro") == ("pro", ["processes"])
    assert complete("map", '"What is') is None
    assert complete("map", '"What?" n') == ("n", ["n0.md", "n1.md", "n2.md", "n3.md"])


def test_another_model_for_one_map_and_budgets(desk, monkeypatch, capsys):
    with Loopback(says("from the other")) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        desk('map --model other --max-tokens 900 --into t "What is it?" *.md')
        assert server.bodies[0]["model"] == "other"
    found = {row["status"] for row in records(desk.shell.user_ns["t"])}
    assert found == {"done", "budget"}
    assert "not started, out of budget" in capsys.readouterr().out
    assert desk.agent.models.main is desk.model


def test_what_a_map_used_counts_to_its_session(desk, home):
    asyncio.run(desk.agent.ask("hello"))
    desk('map "What is it?" *.md')
    store = SqliteStore(home / "notebook.db")
    family = store.lineage(desk.agent.session.id)
    assert [store.get(each).usage.requests for each in family] == [1, 4]
    assert store.get(family[1]).title == "map: What is it?"
    assert [each.id for each in store.sessions()] == family[:1]
    store.close()


def test_the_bar_and_what_is_said_at_the_end():
    inputs = inputs_of({f"<b>{n}": "x" for n in range(10)}, root=None)
    fanout = Fanout(MapPlan(prompt="p"), inputs, model=None, ledger=SqliteStore(":memory:"))
    for number, state in enumerate(["done"] * 5 + ["failed", "unknown", "running"]):
        fanout._set(number, status=state, error="why" if state == "failed" else "")
    shown = running(fanout, 12.0)
    assert shown.startswith("▰" * 16 + "▱" * 8 + " 7 of 10")
    assert "&lt;b&gt;7" in shown and "5 done, 1 failed, 1 unknown" in shown and "12 s" in shown
    for number in (7, 8, 9):
        fanout._set(number, status="stopped")
    shown = finished(fanout, 12.0)
    assert "The same command continues" in shown and "`--retry`" in shown
    assert "| failed | why |" in shown and "◔ 5 done, 1 failed, 1 unknown, 3 stopped" in shown


def test_a_cell_is_updated_at_most_ten_times_a_second(monkeypatch):
    inputs = inputs_of({str(n): "x" for n in range(500)}, root=None)
    fanout = Fanout(MapPlan(prompt="p"), inputs, model=None, ledger=SqliteStore(":memory:"))
    shell = type("Shell", (), {"kernel": type("K", (), {"_allow_stdin": True})()})()
    shown = []

    async def story():
        view = MapView(shell, fanout)
        monkeypatch.setattr(view, "_display", lambda text, over=True: shown.append(over))
        begun = time.monotonic()
        for number in range(500):
            fanout._set(number, status="done")
            view.moved()
            await asyncio.sleep(0.002)
        seconds = time.monotonic() - begun
        view.close()
        view.close()
        await asyncio.sleep(0.3)
        return seconds

    seconds = asyncio.run(story())
    assert shown.count(True) == 1 and shown[-1] is True
    assert 2 <= shown.count(False) <= seconds / 0.12 + 2


# In kernels


@pytest.fixture
def work(tmp_path):
    for n in range(12):
        (tmp_path / f"n{n:02}.md").write_text(f"note {n}")
    return tmp_path


MAP = '%hermes map --parallel 2 --into t "What is it?" *.md'
YES = says("yes")
SLOW = Reply([b": begun\n\n", stall])


@pytest.mark.kernel
def test_a_stopped_cell_says_so_and_the_same_cell_goes_on(work):
    with Loopback(*[YES] * 4, SLOW) as server, served_kernel(server, work) as running_kernel:
        result = running_kernel.run(MAP, allow_stdin=True, stop_on="4 of 12", stop_delay=0.5)
        assert result.status == "error" and result.error["ename"] == "Stopped"
        assert result.stop_seconds < STOPS_WITHIN
        assert "4 done, 8 stopped" in result.markdown
        server.replies[:] = [YES]
        result = running_kernel.run(MAP + "\nlen(t), {row['status'] for row in t}")
        assert result.status == "ok", result.error
        assert "(12, {'done'})" in result.text
        assert "4 from an earlier run" in result.markdown
        assert "No child agents" in running_kernel.run("%hermes jobs").markdown


@pytest.mark.kernel
@pytest.mark.slow
def test_a_kernel_that_is_killed_in_the_middle_leaves_a_map_that_goes_on(work):
    with Loopback(*[YES] * 4, SLOW) as server, served_kernel(server, work) as first:
        first.client.execute(MAP, allow_stdin=True)
        deadline = time.monotonic() + 60
        while len(server.exchanges) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)
        second = first.killed_and_restarted()
        try:
            server.replies[:] = [YES]
            second.run("%load_ext hermes_nb")
            result = second.run(MAP)
            assert result.status == "ok", result.error
            assert "10 done, 2 unknown" in result.markdown
            assert "4 from an earlier run" in result.markdown
            assert "started it and has not finished it" in result.markdown
            before = len(server.exchanges)
            assert len(asked(server, 0)) == 12
            result = second.run(MAP.replace("map", "map --retry"))
            assert "✓ 12 done" in result.markdown
            assert len(asked(server, before)) == 2
        finally:
            second.client.stop_channels()


@pytest.mark.kernel
def test_without_anybody_there_is_one_display(work):
    slow = Reply([pause(0.2), *YES.steps])
    with Loopback(slow) as server, served_kernel(server, work) as running_kernel:
        result = running_kernel.run(MAP, allow_stdin=False)
        assert result.status == "ok", result.error
        assert result.messages == 1 and "✓ 12 done" in result.markdown

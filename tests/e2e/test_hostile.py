"""Hostile texts in a real page, in every place that shows what is not ours.

The page may ask nobody but its own server for anything, no handler and no script of a text may run,
and nothing that would run on a click may be there.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.side import PANEL, Side
from tests.e2e.test_approval import prepare as load
from tests.e2e.test_approval import python
from tests.safety.hostile import HARMLESS, PAYLOADS, numbered

TEXTS = [numbered(payload, number) for number, payload in enumerate(PAYLOADS)]
WATCH = """
window.__pwned = () => { window.pwned = (window.pwned ?? 0) + 1; };
window.alert = window.confirm = window.prompt = window.__pwned;
"""
INSPECT = Path(__file__).with_name("inspect.js").read_text(encoding="utf-8")
SHOW = """
import json, pathlib
from IPython.display import display
from hermes_nb.agent.session.export import export
from hermes_nb.core.events import *
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.protocols import StoredMessage, StoredSession
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import bundle
from hermes_nb.notebook.display.tables import facts, grid
from hermes_nb.safety.markup import code_block, code_span, escape
def show(texts):
    for n, text in enumerate(texts):
        call = ToolCall(id=str(n), name=text, arguments={"command": text, "path": text, text: text})
        transcript = Transcript(model=text)
        for event in (
            TurnStarted(1), ReasoningDelta(text), RequestRetried(text, 2.0, 1), ToolStarted(call),
            ToolProgress(str(n), text), TextDelta(text),
        ):
            transcript(event)
        transcript.describe = lambda call: text
        display(bundle(transcript, running=True), raw=True)
        for event in (
            MessageAdded(Message.assistant(text, calls=[call])), ToolFinished(call, "error", 0.1),
            MessageAdded(Message.tool(call, text)), MessageAdded(Message.assistant(text)),
            TurnEnded("failed", text),
        ):
            transcript(event)
        more = grid((code_span(text), escape(text)), [(code_span(text), escape(text))])
        page = "\\n\\n".join([transcript.finished(), more, facts([("name", text)])])
        display({"text/markdown": page}, raw=True)
def show_exports(texts):
    for text in texts:
        call = ToolCall(id="1", name=text, arguments={"command": text})
        said = [Message.user(text), Message.assistant(text, calls=[call]), Message.tool(call, text)]
        rows = [StoredMessage(session_id="s", position=n, message=m, at=1.0)
                for n, m in enumerate(said)]
        session = StoredSession(id="s", title=text, model=text, notebook=text, started=1.0)
        display({"text/markdown": export(session, rows, "markdown")}, raw=True)
        book = json.loads(export(session, rows, "notebook"))
        display({"text/markdown": book["cells"][0]["source"]}, raw=True)
        display(book["cells"][1]["outputs"][0]["data"], raw=True)
"""
KNOWN = """
import os
from hermes_nb.memory.sessions import SqliteStore
home = pathlib.Path(os.environ["HERMES_HOME"])
store = SqliteStore(home / "notebook.db")
for text in texts:
    session = store.start(title=text)
    store.append(session, Message.user("penguin " + text))
    store.append(session, Message.assistant("penguin " + text))
(home / "memories").mkdir()
(home / "memories" / "MEMORY.md").write_text("\\n§\\n".join(texts), encoding="utf-8")
for n, text in enumerate(texts):
    folder = home / "skills" / "hostile" / f"skill-{n}"
    folder.mkdir(parents=True)
    head = json.dumps(text[:900])
    (folder / "SKILL.md").write_text(
        f"---\\nname: skill-{n}\\ndescription: {head}\\n---\\n\\n{text}\\n", encoding="utf-8")
    name = text.replace("/", "").replace("\\0", "").strip()[:80]
    (home / "skills" / "hostile" / f"{name}").mkdir(exist_ok=True)
    (home / "skills" / "hostile" / f"{name}" / "SKILL.md").write_text(text, encoding="utf-8")
    get_ipython().user_ns[text] = text
"""
OUTPUTS = ".jp-OutputArea-output"


@pytest.fixture
def watched(open_notebook):
    """Return a function that opens a notebook whose page is watched."""
    opened = []

    def open_one(*cells):
        opened.append(open_notebook(*cells, size=(1400, 900), script=WATCH))
        return opened[-1]

    yield open_one
    for notebook in opened:
        here = urlsplit(notebook.server.url).netloc
        asked = map(urlsplit, notebook.asked)
        # Pictures that the cell would hold have a scheme of their own, which leads nowhere.
        strange = {u.geturl() for u in asked if u.scheme not in ("data", "blob", "attachment")}
        assert not {url for url in strange if urlsplit(url).netloc != here}


def unharmed(notebook, roots, least):
    """Assert that nothing shown below these elements runs; there are at least so many of them."""
    found = notebook.page.evaluate(INSPECT, roots)
    assert found["bad"] == []
    assert found["pwned"] == 0
    assert found["seen"] > least


def test_no_text_of_a_turn_or_an_export_is_obeyed(watched):
    cells = [f"show(texts[{at}:{at + 20}])" for at in range(0, len(TEXTS), 20)]
    cells += [f"show_exports(texts[{at}:{at + 15}])" for at in range(0, len(TEXTS), 15)]
    notebook = watched(*cells)
    notebook.kernel(f"{SHOW}\ntexts = json.loads({json.dumps(TEXTS)!r})")
    for number in range(1, len(cells) + 1):
        outputs = notebook.run(number)
        assert outputs, number
        assert {output["output_type"] for output in outputs} == {"display_data"}, outputs[-1]
        notebook.page.wait_for_timeout(700)  # formulas and diagrams are drawn later
        unharmed(notebook, OUTPUTS, 100)
        notebook.evaluate("m.cells[a].setOutputs([])", number)


def test_what_is_harmless_is_shown(watched):
    notebook = watched("show(texts)")
    notebook.kernel(f"{SHOW}\ntexts = json.loads({json.dumps(list(HARMLESS))!r})")
    notebook.run(1)
    page = notebook.page
    for one in ("table", "sub", "details details", "mjx-container", "kbd", "li li li"):
        page.wait_for_selector(f"{OUTPUTS} {one}", state="attached")
    page.wait_for_selector(f"{OUTPUTS} .jp-RenderedMermaid img", state="attached")
    assert page.query_selector_all(f"{OUTPUTS} img[src*='figures/plot.png']")


COMMANDS = (
    *("memory", "skills", "skills show skill-1", "trust", "sessions", "search penguin", "history"),
    *("status", "context", "tools"),
)


def test_nothing_that_hermes_knows_is_obeyed(watched, model):
    notebook = watched(*(f"%hermes {command}" for command in COMMANDS), "%hermes panel memory")
    load(notebook, model)
    home = notebook.server.folder / "home-hostile"
    home.mkdir()
    texts = f"texts = json.loads({json.dumps(TEXTS)!r})"
    notebook.kernel(f"{SHOW}\n{texts}\nos.environ['HERMES_HOME'] = {str(home)!r}\n{KNOWN}")
    for number in range(1, len(COMMANDS) + 1):
        notebook.run(number)
    notebook.page.wait_for_timeout(500)
    unharmed(notebook, OUTPUTS, 1_000)
    notebook.run(len(COMMANDS) + 1)
    side = Side(notebook, model)
    side.see("Notes")
    unharmed(notebook, PANEL, 50)
    side.tab("Skills")
    side.see("skill-0")
    side.press("skill-1")
    side.see("Turn off")
    unharmed(notebook, PANEL, 50)
    side.tab("Session")
    side.field("Search all sessions").fill("penguin")
    side.see("Found")
    side.button("resume").wait_for()
    unharmed(notebook, PANEL, 50)
    notebook.shot("hostile-panel")


def test_a_question_shows_and_obeys_nothing(watched, model):
    notebook = watched("%%hermes\ndo it")
    load(
        notebook,
        model,
        python("\n".join(TEXTS)),
        ("write_file", {"path": "a.md", "content": "\n".join(TEXTS)}),
    )
    notebook.start(1)
    for _ in range(2):
        button = ".hermes-ask button:has-text('Deny…')"
        shown = notebook.page.wait_for_selector(button, timeout=60_000)
        unharmed(notebook, ".hermes-ask, .jp-OutputArea-output", 10)
        notebook.page.click(button)
        notebook.page.wait_for_selector(".hermes-ask input:focus")
        notebook.page.keyboard.press("Enter")
        # The next question may be there before anybody sees that this one is gone.
        notebook.page.wait_for_function("each => !each.isConnected", arg=shown)
    notebook.finish(1)
    unharmed(notebook, OUTPUTS, 10)

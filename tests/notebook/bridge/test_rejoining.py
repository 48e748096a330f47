"""A turn goes on in a page that was reloaded: a real kernel, and a page that the test plays."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import uuid

import pytest
from hermes_nb.notebook.display.views import STILL_RUNNING
from hermes_nb.notebook.frontend import PROTOCOL
from hermes_nb.notebook.page_discovery import BUSY
from hermes_nb.notebook.page_reload import EVERY, SURE

from tests.kernels import kernel
from tests.loopback import Loopback, Reply, chunk, event, stream, text_chunks, tool_chunks

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


INSERT = """
from hermes_nb.notebook.magics import _magics
try:
    await _magics().agent.access.frontend.call("insert", timeout=3)
except Exception as error:
    print(error)
"""


class Page:
    """The front end's half: it runs a cell, says hello on comms and answers what is asked of it.

    `client` is its connection as it calls itself; a page that was reloaded has another one, and
    knows nothing of the cell. `refuses` is the error that it answers `show` with. From the first
    operation `deaf` on it is silent; `keeps` is one that its user has to answer. The pages `beside`
    it hear what it hears. `late` is answered to what it keeps when it is next asked who it is.
    """

    def __init__(self, kernel):
        self.kernel = kernel.client
        self.client = self.kernel.session.session
        self.name = "page.1"
        self.silent = False
        self.refuses = None
        self.deaf = self.keeps = ""
        self.asked = []
        self.answers = {"list": []}
        self.late = None
        self.beside = []
        self.comms = []
        self.shown = []
        self.told = []
        self.running = ""

    def run(self, code):
        session = self.kernel.session
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
        content |= {"user_expressions": {}, "stop_on_error": True}
        message = session.msg("execute_request", content, metadata={"cellId": "cell-1"})
        message["header"]["session"] = self.client
        self.kernel.shell_channel.send(message)
        self.running = message["header"]["msg_id"]

    def reload(self):
        self.client, self.name = uuid.uuid4().hex, "page.2"
        self.silent = False
        for comm in self.comms:
            self.hello(comm)

    def send(self, comm, data):
        message = self.kernel.session.msg("comm_msg", {"comm_id": comm, "data": data})
        message["header"]["session"] = self.client
        self.kernel.shell_channel.send(message)

    def hello(self, comm):
        facts = {"path": "a.ipynb", "name": self.name, "client": self.client, "holds": True}
        facts |= {"protocol": PROTOCOL, "app": "test", "cells": 1}
        self.send(comm, {"hello": facts})

    def until(self, condition, *, seconds=30):
        """Play the page until something holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (self.shown, self.told)
            try:
                self.take(self.kernel.get_iopub_msg(timeout=0.05))
            except queue.Empty:
                continue

    def listen(self, seconds):
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end)

    def take(self, message):
        for other in self.beside:
            other.take(message)
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and message["parent_header"].get("msg_id") == self.running:
            self.running = "" if content["execution_state"] == "idle" else self.running
        elif kind in ("stream", "error", "display_data", "update_display_data"):
            self.told.append(content)
        elif kind == "comm_open" and content["target_name"] == "hermes_nb":
            self.comms.append(content["comm_id"])
            if not self.silent:
                self.hello(content["comm_id"])
        elif kind == "comm_msg" and content["comm_id"] in self.comms and not self.silent:
            self.answer(content["comm_id"], content["data"])

    def answer(self, comm, asked):
        if asked.get("to") != self.name:
            return
        self.asked.append(asked["op"])
        if asked["op"] == self.deaf:
            self.silent = True
            return
        if asked["op"] == self.keeps:
            self.kept = comm, asked["id"]
            return
        if asked["op"] == "info" and self.late:
            self.send(self.kept[0], {"id": self.kept[1], "result": self.late})
        reply = {"result": self.answers.get(asked["op"], {})}
        if asked["op"] == "show":
            self.shown.append(asked["args"])
            reply = {"error": self.refuses} if self.refuses else {"result": None}
        self.send(comm, {"id": asked["id"], **reply})

    @property
    def over(self):
        return [each for each in self.shown if each["over"]]

    @property
    def text(self):
        return self.shown[-1]["outputs"][0]["data"]["text/markdown"]


class Scene:
    """A kernel, its page, and a model whose first reply waits for `gate`."""

    def __init__(self, kernel, server):
        self.kernel, self.page = kernel, Page(kernel)
        self.server, self.gate = server, threading.Event()
        kernel.run("%load_ext hermes_nb")

    def begin(self, code="%%hermes\ntell me"):
        begun = [event(chunk({"content": "Once upon "})), self.wait]
        server_reply = Reply([*begun, *stream(text_chunks("a time.")).steps])
        self.server.replies[:] = [server_reply]
        self.page.run(code)
        self.page.until(lambda: "Once upon" in json.dumps(self.page.told))

    def until_another_page_is_taken_for_it(self):
        """Wait until a call has waited for the page that ran the cell; it is not yet sure."""
        called = len(self.page.comms)
        self.page.until(lambda: len(self.page.comms) > called)
        self.page.listen(BUSY + SURE / 2)

    def wait(self, exchange):
        while not self.gate.wait(0.05) and not exchange.gone():
            pass

    def end(self):
        self.gate.set()
        self.page.until(lambda: not self.page.running)


@pytest.fixture
def scene(tmp_path, home):
    with Loopback() as server:
        env = {
            **os.environ,
            "HERMES_HOME": str(home),
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback-model",
        }
        with kernel(env, cwd=str(tmp_path)) as running:
            made = Scene(running, server)
            yield made
            made.gate.set()


def test_a_page_that_came_back_gets_the_turn_and_its_end_and_what_is_missing(scene):
    scene.begin("print('before')\n%hermes tell me\nprint('after')")
    scene.page.reload()
    scene.page.until(lambda: scene.page.shown)
    first = scene.page.shown[0]
    assert (first["id"], first["over"], first["running"]) == ("cell-1", False, STILL_RUNNING)
    assert "Once upon" in scene.page.text and "◌ running" in scene.page.text
    assert len(first["outputs"]) == 1
    scene.end()
    (last,) = scene.page.over
    assert "Once upon a time." in scene.page.text and "✓" in scene.page.text
    assert isinstance(last["execution_count"], int)
    _, lost = last["outputs"]
    assert "output of its other code since then is not displayed" in lost["data"]["text/markdown"]


def test_a_page_that_is_only_busy_keeps_its_turn_and_is_shown_nothing_twice(scene):
    page, other = scene.page, Page(scene.kernel)
    other.client, other.name = uuid.uuid4().hex, "page.2"
    page.beside.append(other)
    scene.begin()
    page.silent = True
    scene.until_another_page_is_taken_for_it()
    page.silent = False
    page.hello(page.comms[-1])
    page.listen(5)
    scene.end()
    assert other.shown == page.shown == []


def test_a_window_that_says_hello_while_a_question_waits_is_asked_and_its_answer_counts(scene):
    page, other = scene.page, Page(scene.kernel)
    page.keeps = "ask"
    other.client, other.name = uuid.uuid4().hex, "page.2"
    call = stream(tool_chunks(("run_python", {"code": "made = 1"})))
    scene.server.replies[:] = [call, stream(text_chunks("Done."))]
    page.run("%%hermes\nmake it")
    page.until(lambda: "ask" in page.asked)
    other.comms = list(page.comms)
    page.beside.append(other)
    other.hello(page.comms[-1])
    page.until(lambda: "ask" in other.asked)
    page.until(lambda: "drop" in page.asked)
    page.until(lambda: not page.running)
    assert "denied" in json.dumps(page.told)


def test_an_answer_that_comes_while_the_page_is_looked_for_counts(scene):
    page = scene.page
    page.keeps = "ask"
    call = stream(tool_chunks(("run_python", {"code": "made = 1"})))
    scene.server.replies[:] = [call, stream(text_chunks("Done."))]
    page.run("%%hermes\nmake it")
    page.until(lambda: page.asked[-2:] == ["ask", "info"])  # by whoever shows it to a new page
    page.late = {"answer": "once", "reason": ""}
    page.until(lambda: not page.running)
    assert "allowed once" in json.dumps(page.told) and "Done." in json.dumps(page.told)


def test_a_window_that_is_slow_to_say_hello_is_asked_and_nobody_is_called_again_for_it(scene):
    page, other = scene.page, Page(scene.kernel)
    page.keeps = other.keeps = "ask"
    other.client, other.name, other.silent = uuid.uuid4().hex, "page.2", True
    page.beside.append(other)
    call = stream(tool_chunks(("run_python", {"code": "made = 1"})))
    scene.server.replies[:] = [call, stream(text_chunks("Done."))]
    page.run("%%hermes\nmake it")
    page.until(lambda: "ask" in page.asked)
    other.hello(page.comms[-1])
    page.until(lambda: len(page.comms) == 2)  # once, for what the kernel had never heard of
    page.listen(0.5)
    other.silent = False
    other.hello(page.comms[-1])
    page.until(lambda: "ask" in other.asked)
    page.listen(2.5 * EVERY)
    assert len(page.comms) == 2


def test_a_mode_is_asked_for_in_the_page_and_again_after_a_reload(scene):
    page = scene.page
    scene.kernel.run("import hermes_nb.notebook.approval as a; a.CEILING = None")
    page.keeps = "ask"
    scene.server.replies[:] = [stream(text_chunks("Done."))]
    page.run("%%hermes --approve all\nmake it")
    page.until(lambda: "ask" in page.asked)
    page.silent, page.keeps = True, ""
    page.listen(3)
    page.answers["ask"] = {"answer": "once", "reason": "Allow for this notebook"}
    page.reload()
    page.until(lambda: not page.running)
    assert page.asked.count("ask") == 2
    assert "Done." in json.dumps(page.shown) and "stays" not in json.dumps(page.told)


def test_a_page_that_is_loaded_after_the_end_gets_it_too(scene):
    scene.begin()
    scene.page.silent = True
    scene.end()
    assert scene.page.shown == []
    scene.page.reload()
    scene.page.until(lambda: scene.page.over)
    assert "Once upon a time." in scene.page.text
    assert len(scene.page.over[-1]["outputs"]) == 1


def test_a_page_that_is_too_busy_for_the_end_gets_it_when_it_is_not(scene):
    scene.begin()
    scene.page.reload()
    scene.page.listen(0.5)
    scene.page.silent = True
    scene.end()
    assert scene.page.over == []
    scene.page.silent = False
    scene.page.until(lambda: scene.page.over)
    assert "Once upon a time." in scene.page.text


def test_a_page_that_cannot_show_it_costs_the_turn_nothing(scene):
    scene.page.refuses = {"kind": "missing", "message": "there is no cell cell-1"}
    scene.begin()
    scene.page.reload()
    scene.page.until(lambda: scene.page.shown)
    scene.end()
    assert "Once upon a time." in json.dumps(scene.page.told)
    assert not any("ename" in each for each in scene.page.told)


@pytest.mark.parametrize("reloaded", [True, False])
def test_what_a_page_took_along_is_asked_of_itself_alone(scene, reloaded):
    page, other = scene.page, Page(scene.kernel)
    other.client, other.name = uuid.uuid4().hex, "page.3"
    page.beside += [] if reloaded else [other]
    page.deaf = "insert"
    page.run(INSERT)
    page.until(lambda: "insert" in page.asked)
    if reloaded:
        page.deaf = ""
        page.listen(1.5)
        page.reload()
    page.until(lambda: not page.running)
    assert page.asked.count("insert") == 1 + reloaded
    assert "insert" not in other.asked
    assert ("did not answer" in json.dumps(page.told)) != reloaded


@pytest.mark.parametrize("code", ["%%hermes\ntell me", "1 + 1"])
def test_a_cell_that_is_run_again_is_shown_nothing_of_the_turn_before(scene, code):
    page = scene.page
    scene.begin()
    page.reload()
    page.until(lambda: page.shown)
    scene.end()
    assert page.over
    page.shown.clear()
    scene.server.replies[:] = [stream(text_chunks("Another tale."))]
    page.run(code)
    page.until(lambda: not page.running)
    page.reload()
    page.listen(SURE + EVERY)
    assert "Once upon" not in json.dumps(page.shown)

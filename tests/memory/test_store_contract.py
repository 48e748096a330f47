"""What every session store promises, checked against each of them and against a plain model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hermes_nb.core.messages import Image, Message, ToolCall, Usage
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(params=["home/notebook.db", ":memory:"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(request.param)
    yield store
    store.close()
    store.close()


def texts(messages):
    return [message.text for message in messages]


def filled(store, *words, **facts):
    session = store.start(**facts)
    for word in words:
        store.append(session, Message.user(word))
    return session


def test_messages_come_back_as_they_were(store):
    call = ToolCall(id="1", name="read_file", arguments={"path": "a"}, text='{"path":"a"}')
    messages = [
        Message.user("look at this", images=[Image("aGk=")]),
        Message.assistant("sure", calls=[call], reasoning="hm"),
        Message.tool(call, "no such file", failed=True),
        Message.assistant("half an ans", interrupted=True),
        Message.user("lone surrogate \ud800, NUL \0, emoji 🦊, 漢字, \x1b[31m, \u202e"),
        Message(role="assistant", echo={"reasoning_details": [{"x": math.inf, "y": -math.inf}]}),
        Message.user(""),
        Message.user("x" * 10_000_000),
    ]
    session = store.start(title="t")
    for message in messages:
        store.append(session, message)
    assert store.messages(session) == messages
    assert store.get(session).messages == len(messages)
    rows = store.rows(session)
    assert [row.message for row in rows] == messages
    assert [row.position for row in rows] == list(range(len(messages)))
    assert {row.state for row in rows} == {"active"}


def test_what_json_cannot_hold_never_breaks_a_write(store):
    endless: dict = {}
    endless["self"] = endless
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    session = store.start()
    for odd in ({"x": endless}, {"x": deep}, {("a", "b"): 1, "x": object(), "b": b"\xff"}):
        call = ToolCall(id="1", name="t", arguments=odd, text="{...}")
        store.append(session, Message.assistant("said", calls=[call]))
        store.append(session, Message(role="assistant", echo=odd))
    store.append(session, Message(role="assistant", echo={"x": math.nan}))
    assert math.isnan(store.messages(session)[-1].echo["x"])
    assert texts(store.messages(session)) == [*["said", ""] * 3, ""]
    assert store.messages(session)[0].calls[0].text == "{...}"


def test_sessions_are_listed_by_notebook_and_last_use(store):
    first = store.start(notebook="/w/a.ipynb", started=3.0)
    second = store.start(notebook="/w/b.ipynb", started=2.0)
    third = store.start(notebook="/w/a.ipynb", started=1.0)
    store.append(first, Message.user("again"))
    assert [session.id for session in store.sessions()] == [first, third, second]
    assert [session.id for session in store.sessions(limit=2)] == [first, third]
    assert [session.id for session in store.sessions(notebook="/w/a.ipynb")] == [first, third]
    store.append(second, Message.user("later"))
    store.append(first, Message.user("last"))
    assert [session.id for session in store.sessions()] == [first, second, third]
    store.end(third)
    assert store.get(third).ended is not None
    store.append("lost", Message.user("still here"))
    store.count("lost too", Usage(input=1))
    assert texts(store.messages("lost")) == ["still here"]
    assert store.get("lost").started > 0 and store.get("lost too").usage.input == 1
    assert store.get("nobody") is None


def test_a_session_is_what_it_was_started_as(store):
    facts = {"source": "script", "started": 12.5, "model": "m", "system_prompt": "p\0q"}
    store.start(session_id="s", title="t\ud800", notebook="/w/\udcff.ipynb", **facts)
    stored = store.get("s")
    assert (stored.title, stored.source, stored.notebook) == ("t?", "script", "/w/?.ipynb")
    assert (stored.started, stored.written, stored.model) == (12.5, 12.5, "m")
    assert (stored.system_prompt, stored.parent, stored.messages) == ("p\0q", "", 0)
    assert store.start(session_id="s", title="another") == "s"
    assert store.get("s").title == "t?"
    store.rename("s", "new")
    assert store.get("s").title == "new"


def test_the_sessions_of_a_renamed_notebook_go_along(store):
    for name, notebook in (("a", "/w/old\udcff.ipynb"), ("b", "/w/old\udcff.ipynb"), ("c", "/w/c")):
        store.start(session_id=name, notebook=notebook)
    store.relocate("/w/old\udcff.ipynb", "/w/new.ipynb")
    assert {each.id for each in store.sessions(notebook="/w/new.ipynb")} == {"a", "b"}
    assert store.sessions(notebook="/w/old\udcff.ipynb") == []
    assert store.get("c").notebook == "/w/c"
    store.relocate("/w/nothing.ipynb", "/w/c")
    assert len(store.sessions(notebook="/w/c")) == 1


def test_counters_add_up_and_an_unknown_cost_is_not_zero(store):
    session = store.start()
    store.count(session, Usage(input=100, output=5, cached=60, requests=1))
    assert store.get(session).usage.cost is None
    store.count(session, Usage(input=10, output=5, requests=1, cost=0.25))
    assert store.get(session).usage == Usage(input=110, output=10, cached=60, requests=2, cost=0.25)


def test_a_family_is_found_from_each_of_its_members(store):
    eldest = store.start(session_id="a")
    for name, parent in (("b", "a"), ("c", "a"), ("d", "b"), ("x", ""), ("y", "nobody")):
        store.start(session_id=name, parent=parent)
    assert store.get("d").parent == "b"
    for member in "abcd":
        assert store.lineage(member) == ["a", "b", "c", "d"]
    assert store.lineage("x") == ["x"]
    assert store.lineage("y") == ["y"] and store.get("y").parent == ""
    assert store.lineage("nobody") == ["nobody"]
    store.delete("b")
    assert store.lineage(eldest) == ["a", "c", "d"]


def test_a_deleted_session_is_gone_and_nothing_else_is(store):
    gone = filled(store, "the walrus", "and the carpenter")
    kept = filled(store, "the walrus stays")
    store.replace(gone, [Message.user("walrus again")])
    store.delete(gone)
    store.delete("nobody")
    assert store.get(gone) is None
    assert store.messages(gone) == [] and store.rows(gone) == []
    assert {hit.session_id for hit in store.search("walrus carpenter")} == {kept}


def test_a_summary_stands_where_the_messages_stood(store):
    session = filled(store, *"abcdef", system_prompt="before")
    before = store.messages(session)
    head, tail = before[:1], before[4:]
    store.replace(session, [*head, Message.user("S1"), *tail], system_prompt="after")
    assert texts(store.messages(session)) == ["a", "S1", "e", "f"]
    assert store.get(session).system_prompt == "after"
    assert store.get(session).messages == 4
    assert texts(row.message for row in store.rows(session, first=1, last=3)) == ["b", "c", "d"]
    assert texts(row.message for row in store.rows(session, first=5)) == ["f", "S1"]
    assert store.rows(session, first=9) == store.rows("nobody") == []
    assert [hit.position for hit in store.search("b")] == [1]
    store.append(session, Message.user("g"))
    now = store.messages(session)
    store.replace(session, [now[0], Message.user("S2"), *now[3:]])
    store.append(session, Message.user("h"))
    assert texts(store.messages(session)) == ["a", "S2", "f", "g", "h"]
    states = {row.message.text: row.state for row in store.rows(session)}
    gone = ["b", "c", "d", "e", "S1"]
    kept = ["a", "f", "g", "h", "S2"]
    assert states == dict.fromkeys(kept, "active") | dict.fromkeys(gone, "compressed")
    assert texts(row.message for row in store.rows(session) if row.made) == ["S1", "S2"]
    assert texts(store.restore(session)) == ["a", "S1", "e", "f", "g", "h"]
    assert store.get(session).system_prompt == "after"
    assert texts(store.restore(session)) == ["a", "b", "c", "d", "e", "f", "g", "h"]
    assert store.get(session).system_prompt == "before"
    assert store.get(session).messages == 8
    assert store.restore(session) is None
    undone = [row.message.text for row in store.rows(session) if row.state == "undone"]
    assert sorted(undone) == ["S1", "S2"]


def test_a_search_can_be_narrowed(store):
    one = filled(store, "the walrus", "nothing")
    two = store.start()
    store.append(two, Message.assistant("a walrus again"))
    at = store.rows(two)[0].at
    found = store.search("walrus")
    places = {(hit.session_id, hit.position, hit.role) for hit in found}
    assert places == {(one, 0, "user"), (two, 0, "assistant")}
    assert [hit.session_id for hit in store.search("walrus", session_id=one)] == [one]
    assert [hit.session_id for hit in store.search("walrus", exclude=[one])] == [two]
    assert [hit.session_id for hit in store.search("walrus", roles=["assistant"])] == [two]
    assert len(store.search("walrus", limit=1)) == 1
    assert store.search("walrus", since=at + 1) == []
    assert store.search("walrus", until=at - 3600) == []


@dataclass
class Model:
    """A session store as one would explain it: rows with states, and a stack of conversations."""

    rows: list[tuple[Message, str]] = field(default_factory=list)
    stack: list[tuple[range, int, list[int]]] = field(default_factory=list)

    def conversation(self) -> list[int]:
        stop, order = self.stack[-1][1:] if self.stack else (0, [])
        later = [i for i in range(stop, len(self.rows)) if self.rows[i][1] == "active"]
        return order + later

    def append(self, message):
        self.rows.append((message, "active"))

    def replace(self, messages):
        before = self.conversation()
        if [self.rows[i][0] for i in before] == messages[: len(before)]:
            for message in messages[len(before) :]:
                self.append(message)
            return
        start, free, order = len(self.rows), list(before), []
        for message in messages:
            known = next((i for i in free if self.rows[i][0] == message), None)
            if known is None:
                self.append(message)
                known = len(self.rows) - 1
            else:
                free.remove(known)
            order.append(known)
        for i in free:
            self.rows[i] = (self.rows[i][0], "compressed")
        self.stack.append((range(start, len(self.rows)), len(self.rows), order))

    def restore(self):
        if not self.stack:
            return
        added, _, _ = self.stack.pop()
        for i in added:
            self.rows[i] = (self.rows[i][0], "undone")
        stop, order = self.stack[-1][1:] if self.stack else (0, [])
        for i in [*order, *range(stop, len(self.rows))]:
            if self.rows[i][1] == "compressed":
                self.rows[i] = (self.rows[i][0], "active")


# Few different texts for appended messages, so that equal ones are common among them; which of two
# equal rows stays is the store's choice, so those that are compared by state carry a number.
operations = st.lists(
    st.one_of(
        st.tuples(st.just("append")),
        st.tuples(
            st.just("replace"),
            st.integers(0, 5),
            st.integers(0, 5),
            st.lists(st.sampled_from(["S", "T"]), max_size=2),
            st.booleans(),
        ),
        st.tuples(st.just("restore")),
    ),
    max_size=25,
)


def play(store, session, model, steps):
    """Do the same to the store and to the model, and compare them after each step."""
    for count, (step, *arguments) in enumerate(steps):
        if step == "append":
            message = Message.user(f"m{count}")
            store.append(session, message)
            model.append(message)
        elif step == "replace":
            head, tail, summaries, turned = arguments
            now = store.messages(session)
            kept = now[max(head, len(now) - tail) :]
            made = [Message.user(f"{name}{count}.{i}") for i, name in enumerate(summaries)]
            after = [*now[:head], *made, *(reversed(kept) if turned else kept)]
            store.replace(session, after)
            model.replace(after)
        else:
            restored = store.restore(session)
            assert (restored is None) == (not model.stack)
            model.restore()
        rows = store.rows(session)
        assert [(row.message, row.state) for row in rows] == model.rows
        assert store.messages(session) == [model.rows[i][0] for i in model.conversation()]
        assert store.get(session).messages == len(model.conversation())


@given(steps=operations)
@settings(max_examples=60)
def test_any_history_is_what_the_model_says(steps):
    store = SqliteStore(":memory:")
    play(store, store.start(), Model(), steps)
    store.close()


def test_usage_is_summed_by_source_and_model(store):
    first = store.start(notebook="/w/a.ipynb", model="m", started=100.0)
    review = store.start(source="review", parent=first, model="small", started=200.0)
    second = store.start(notebook="/w/a.ipynb", model="m", started=300.0)
    other = store.start(notebook="/w/b.ipynb", model="m", started=400.0)
    alone = store.start(source="child", notebook="/w/a.ipynb", model="m", started=500.0)
    for session, cost in ((first, 0.1), (review, 0.02), (second, None), (other, 9.0), (alone, 1.0)):
        store.count(session, Usage(input=10, output=1, cached=4, requests=1, cost=cost))
    own, reviewed = ("notebook", "m"), ("review", "small")
    whole = store.usage(session_id=review)
    assert whole == store.usage(session_id=first)
    assert {key: used.cost for key, used in whole.items()} == {own: 0.1, reviewed: 0.02}
    notebook = store.usage(notebook="/w/a.ipynb")
    assert (notebook[own].requests, notebook[own].input, notebook[own].cost) == (2, 20, 0.1)
    assert set(notebook) == {own, reviewed}
    since = store.usage(since=300.0)
    assert since[own].cost == 9.0 and since["child", "m"].requests == 1
    assert store.usage(session_id="unknown") == store.usage(notebook="/w/none.ipynb") == {}

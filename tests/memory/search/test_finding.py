"""Finding messages: what is found, what is left out, and that nothing a user types can break it."""

from __future__ import annotations

import sqlite3
from functools import cache

import pytest
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory import rows, schema
from hermes_nb.memory.rows import encode
from hermes_nb.memory.search import documents, finding, index
from hermes_nb.memory.search.finding import SHOWN
from hermes_nb.memory.search.postings import Filter
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from tests.cpu import within

DAY = 86400.0
MAY = 1_683_540_000.0
"""8 May 2023, around noon in Europe."""


class Store:
    """The tables of a store and nothing else of it."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        schema.SCHEMA.migrate(self.connection)
        self._at = MAY

    def add(self, session, *messages, at=None, started=None):
        for given in messages:
            message = Message.user(given) if isinstance(given, str) else given
            self._at += 60
            when = self._at if at is None else at
            self.connection.execute(
                "INSERT OR IGNORE INTO sessions (id, title, source, notebook, model, system_prompt,"
                " started) VALUES (?, '', '', '', '', '', ?)",
                (session, when if started is None else started),
            )
            rows.append(self.connection, session, message.role, encode(message), when)
        index.catch_up(self.connection)

    def find(self, query, **options):
        limit = options.pop("limit", 20)
        return finding.find(self.connection, query, Filter(**options), limit=limit)

    def places(self, query, **options):
        return [(hit.session_id, hit.position) for hit in self.find(query, **options)]


@pytest.fixture
def store():
    return Store()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        *(("she painted a sunrise", "painting"), ("I went to the market", "going to markets")),
        ("we bought two children's books", "buy a book for a child"),
        ("The café serves crème brûlée", "cafe creme brulee"),
        *(("STRASSE und Größe", "straße grosse"), ("use load_data here", "load_data")),
        *(("use load_data here", "load"), ("see src/app.py line 3", "src/app.py")),
        *(("see src/app.py line 3", "app.py"), ("raise KeyError('x')", "KeyError")),
        *(("raise KeyError('x')", "keyerror"), ("raise KeyError('x')", "error")),
        *(("pi is 3.14 roughly", "3.14"), ("it answers HTTP 429 often", "HTTP 429")),
        *(("commit 3f9a1c7 broke it", "3f9a1c7"), ("今天北京天气很好", "天气")),
        ("今天北京天气很好", "京"),
        *(("東京タワーに行きました", "タワー"), ("사과를 먹었다", "사과"), ("ฉันรักภาษาไทย", "ภาษา")),
        *(("मुझे हिन्दी पसंद है", "हिन्दी"), ("привет, Мария", "МАРИЯ")),
        *(("the geography of nowhere", "ograph"), ("the ophthalmologist called", "ophtalmologist")),
        *(("to be or not to be", '"to be or not to be"'), ("what is it", "what is it")),
        ("\ud800 lone and \0 NUL needle", "needle"),
    ],
)
def test_what_was_said_is_found(store, text, query):
    store.add("a", "something else entirely", text, "and more of that")
    assert store.places(query)[0] == ("a", 1)


def test_calls_and_rare_words_are_found_and_repeated_texts_come_last(store):
    call = ToolCall(id="1", name="read_file", arguments={"path": "notes/todo.md"})
    store.add("b", Message.assistant(calls=[call]), Message.tool(call, "buy zucchini"))
    assert store.places("todo.md") == [("b", 0)]
    assert store.places("zucchini") == [("b", 1)]
    assert store.find("read_file", roles=["tool"])[0].position == 1
    store.add("c", "alpha alpha", "alpha alpha", "alpha beta gamma delta")
    assert store.places("alpha")[-1] in {("c", 0), ("c", 1)}
    assert len(store.places("alpha")) == 3
    store.add("a", *["the build passed again"] * 40, "the build broke on zephyr", "the build")
    assert store.places("the build zephyr")[0] == ("a", 40)


def test_the_answer_after_a_question_is_found_without_a_word_of_it(store):
    store.add("a", *(f"filler number {n} about nothing" for n in range(20)))
    store.add("b", "Which breed is your puppy?", Message.assistant("A border collie."))
    assert ("b", 1) in store.places("What breed is the puppy?")[:2]
    assert store.places("puppy breed") == [("b", 0)], "words that are looked up must stand there"


def test_who_speaks_counts(store):
    store.add("a", "Ana: I painted a lake", "Ben: I painted a horse", "Ana: nice", "Ben: thanks")
    store.add("a", *(f"{name}: chat {n}" for n in range(10) for name in ("Ana", "Ben")))
    assert store.places("What did Ben paint?")[0] == ("a", 1)
    assert store.places("What did Ana paint?")[0] == ("a", 0)
    for n in range(6):
        store.add(f"s{n}", f"Hi Priya, day {n}!", Message.assistant(f"Hello Tom, day {n}!"))
    store.add("x", "I adopted a rabbit", Message.assistant("I adopted a parrot"))
    assert store.places("What did Priya adopt?")[0] == ("x", 1)
    assert store.places("What did Tom adopt?")[0] == ("x", 0)


def test_filters_apply_before_anything_is_cut_off(store, monkeypatch):
    monkeypatch.setattr(finding, "FEWEST", 50)
    store.add("old", "alpha beta", at=MAY)
    store.add("old", Message.assistant("alpha gamma"), at=MAY)
    for n in range(30):
        store.add(f"new{n}", *["alpha delta"] * 10, at=MAY + 100 * DAY)
    assert store.places("alpha", session_id="old") == [("old", 1), ("old", 0)]
    assert store.places("alpha", roles=["assistant"]) == [("old", 1)]
    excluded = [f"new{n}" for n in range(30)]
    assert set(store.places("alpha", exclude=excluded)) == {("old", 0), ("old", 1)}
    assert store.places("alpha", session_id="nowhere") == []
    store.add("a", "needle one", at=MAY)
    store.add("a", "needle two", at=MAY + 1)
    assert store.places("needle", since=MAY + 1) == [("a", 1)]
    assert store.places("needle", until=MAY + 1) == [("a", 0)]
    assert store.find("needle", since=MAY + 1)[0].when == MAY + 1
    for at in (float("inf"), float("-inf"), 1e300, -1e15, 0.0):  # a mad clock breaks nothing
        store.add(f"mad {at}", "haystack", at=at)
        store.find("haystack", since=at, until=at)
    assert len(store.places("haystack last week in May")) == 5


def test_a_long_session_spans_blocks(store):
    store.add("a", *(f"word{n} filler" for n in range(2 * documents.BLOCK + 5)))
    for n in (0, documents.BLOCK - 1, documents.BLOCK, 2 * documents.BLOCK + 4):
        assert store.places(f"word{n}") == [("a", n)]
    assert len(store.places("filler", session_id="a", limit=1000)) == 2 * documents.BLOCK + 5


VOCABULARY = ["red", "green", "blue", "black"]


def expressions():
    words = st.sampled_from(VOCABULARY)
    phrases = st.lists(words, min_size=2, max_size=3).map(lambda found: ("phrase", found))
    return st.recursive(
        st.one_of(words.map(lambda word: ("phrase", [word])), phrases),
        lambda inner: st.tuples(st.sampled_from(["AND", "OR", "NOT"]), inner, inner),
        max_leaves=6,
    )


def written(node):
    if node[0] == "phrase":
        return f'"{" ".join(node[1])}"' if len(node[1]) > 1 else node[1][0]
    return f"({written(node[1])} {node[0]} {written(node[2])})"


def holds(text, node):
    if node[0] == "phrase":
        return f" {' '.join(node[1])} " in f" {text} "
    left, right = holds(text, node[1]), holds(text, node[2])
    return {"AND": left and right, "OR": left or right, "NOT": left and not right}[node[0]]


@settings(max_examples=60, deadline=None)
@for_all(
    st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=5).map(" ".join), max_size=8),
    expressions(),
)
def test_operators_mean_what_they_say(texts, node):
    store = Store()
    store.add("a", *texts)
    query = written(node)
    if node[0] == "phrase":
        query += " AND " + query
    found = {hit.position for hit in store.find(query, limit=100)}
    assert found == {n for n, text in enumerate(texts) if holds(text, node)}


def test_operators_by_example(store):
    store.add("a", "salt", "salt and pepper", "pepper", "pepper or nothing", "Painting walls")
    for query, found in (
        ("NOT salt", {2, 3, 4}),
        ("salt and pepper", {0, 1, 2, 3}),  # plain words
        ("pep*", {1, 2, 3}),
        ("paintin*", {4}),
        ('"and pepper"', {1}),
        ('"pepper and salt"', set()),
        ('"salt and pepper" walls', {1}),  # a phrase has to be there
    ):
        assert {position for _, position in store.places(query)} == found, query


AWKWARD = st.text(
    st.one_of(
        st.sampled_from("\"'()*:^-+{}[]~.,;?!\\/%_\0§¦«»“”\ud800\udfff\u200b"),
        st.characters(),
        st.sampled_from("abcd 天気"),
    ),
    max_size=40,
)


@cache
def _filled():
    store = Store()
    store.add("a", "a b c d 天気 abcd", 'col: "NEAR(" a* ^ -b', "", Message.assistant("b? c!"))
    return store


@pytest.mark.parametrize(
    "query",
    [
        *("", " ", "?", "'", "it's '", "' AND '", "'*", '"', '"""', "()", "((((((", "*", "the"),
        *("AND", "NOT NOT NOT", "a AND", "OR b", "\0", "\ud800", "a" * 1_000_000, "a " * 500_000),
        *("(" * 500_000, "(a OR " * 100_000, "NOT (" * 3_000 + "a" + ")" * 3_000),
        *('"a b" AND ' * 50_000, "天" * 300_000, "(a AND (b OR " * 40 + "c" + "))" * 40),
        *("(a NOT (b AND " * 40 + "c" + "))" * 40, "(a OR b AND c NOT " * 40 + "d" + ")" * 40),
        *("(a* OR b* AND NOT c* " * 40 + "d" + ")" * 40, "NOT (a AND b OR " * 40 + "d" + ")" * 40),
        *(" OR ".join(f"word{n}" for n in range(1_000)), " ".join(f"wo{n}*" for n in range(1_000))),
    ],
)
def test_extreme_queries_are_quick(query):
    within(1.0, _filled().find, query)


@settings(max_examples=50, deadline=None)
@for_all(st.lists(AWKWARD, min_size=1, max_size=4))
def test_any_message_is_indexed_and_found_and_taken_out_again(texts):
    store = Store()
    store.add("keep", "needle")
    store.add("gone", *texts)
    for hit in (hit for text in texts for hit in store.find(text)):
        assert len(hit.snippet) <= SHOWN
        assert "\n" not in hit.snippet
    index.remove(store.connection, "gone")
    store.connection.execute("DELETE FROM messages WHERE session = 'gone'")
    store.connection.execute("INSERT INTO search_text (search_text) VALUES ('integrity-check')")
    assert store.places("needle") == [("keep", 0)]
    kept = Store()
    kept.add("keep", "needle")
    assert _terms(store) == _terms(kept)


def _terms(store):
    """Return how often each word stands in the index."""
    store.connection.execute(
        "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab('main', 'search_text', 'row')"
    )
    found = store.connection.execute("SELECT term, cnt FROM temp.vocabulary").fetchall()
    return {term: count for term, count in found if term[0] not in (documents.MARK, "¦")}


def test_a_rebuilt_index_finds_the_same(store):
    texts = [f"message {n} about topic{n % 7} and KeyError{n}" for n in range(300)]
    store.add("a", *texts[:200])
    store.add("b", *texts[200:])
    queries = ["topic3", "KeyError250", "message AND topic5", '"about topic2"', "mess*"]
    before = [store.places(query) for query in queries]
    index.rebuild(store.connection)
    assert [store.places(query) for query in queries] == before
    store.connection.execute("UPDATE messages SET body = 'broken needle {'")
    index.rebuild(store.connection)
    assert store.find("broken")[0].snippet == "broken needle {"


def test_without_an_index_the_messages_are_read(store, caplog):
    store.add("a", "alpha beta", "beta gamma", Message.assistant("gamma alpha"))
    store.connection.execute("DROP TABLE search_text")
    finding._say_once.cache_clear()
    assert store.places("alpha AND gamma") == [("a", 2)]
    assert set(store.places("alpha")) == {("a", 0), ("a", 2)}
    assert store.places('"beta gamma"') == [("a", 1)]
    assert store.places("NOT gamma") == [("a", 0)]
    assert store.places("gam*", roles=["user"]) == [("a", 1)]
    assert len(caplog.records) == 1
    store.add("a", "the next message brings the index back")
    assert store.places("brings index") == [("a", 3)]
    assert set(store.places("alpha")) == {("a", 0), ("a", 2)}


def test_a_huge_message_is_found_and_shown_within_bounds(store):
    hay = "lorem ipsum dolor " * 60_000
    store.add("a", hay + " needle " + hay)
    (hit,) = store.find("needle")
    assert len(hit.snippet) <= SHOWN
    store.add("b", hay[:100_000] + " pin\nand\tneedle " + hay[:100_000])
    assert "pin and needle" in store.find("pin")[0].snippet


def test_snippets_show_what_matched(store):
    store.add("a", f"{'x ' * 400} the quick\nbrown fox went home {'y ' * 400}", "short\ntext")
    assert "quick brown fox" in store.find("fox")[0].snippet
    assert "fox went home" in store.find("going")[0].snippet
    assert store.find("short")[0].snippet == "short text"
    store.add("b", "nothing to see here " * 30 + "but a hippopotamus at the end")
    assert "a hippopotamus at" in store.find("popotam")[0].snippet

"""What is recorded is replayed, whatever differs between two runs; what changed is said."""

from __future__ import annotations

import asyncio
import json
import os
import random
import string
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hermes_nb.context.compressor import Compressor
from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import ReasoningDelta, TextDelta
from hermes_nb.core.messages import Image, Message, Reply, Text, ToolCall, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import Toolset
from hermes_nb.models import volatile
from hermes_nb.models.canonical import Canon, Link
from hermes_nb.models.cassette import Cassette, CassetteError, CassetteFiles, CassetteMiss, Deck
from hermes_nb.models.cassette_file import Tape
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.profiles import EMBEDDED
from hermes_nb.models.recording import Recording, read, recut
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.models.volatile import RESULTS, Named, Places, masked
from hermes_nb.safety.scan import wrap
from hermes_nb.tools.schema import tool
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import growth
from tests.loopback import Loopback, failure

SECRET = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vX7"
NOWHERE = Places({}, None)
WORDS = st.text(alphabet=string.ascii_letters + " .,äß漢\n", max_size=60)


def canon(**options):
    return Canon(places=lambda: NOWHERE, **options)


def key(*messages, tools=(), choice="auto", **options):
    request = Request(messages=messages, tools=Toolset(tools), tool_choice=choice)
    return canon(**options)(request).key


async def collect(model, *messages, **options):
    request = Request(messages=messages or (Message.user("hi"),), **options)
    async with aclosing(model.stream(request)) as items:
        return [item async for item in items]


def ask(model, *messages, **options):
    return asyncio.run(collect(model, *messages, **options))


def said(model, prompt="hi"):
    return ask(model, Message.user(prompt))[-1].message.text


def recorded(path, replies, *prompts):
    """Record the answers to some prompts, and return what was said."""
    model = Cassette(ScriptedModel(replies), path, "record")
    return [said(model, prompt) for prompt in prompts]


def replayed(path, *prompts):
    model = Cassette(None, path, "replay")
    return [said(model, prompt) for prompt in prompts]


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@tool
def look(path: str, lines: int = 3) -> str:
    """Look at a file."""
    return path


def story(
    name="data.csv", *, ident="a", session="20261122-001122-abcdef", nonce="0a1b2c3d", **more
):
    asked = ToolCall(id=f"{ident}1", name="look", arguments={"path": name, "lines": 3})
    marked = wrap("three rows", source="a.csv", nonce=nonce)
    date = more.get("date", "2026-11-22")
    took = more.get("took", "0.3 s")
    return (
        Message.system(f"You are.\n\nDate: {date}. Session: {session}.\n\nBe brief."),
        Message.user("How many rows?"),
        Message.assistant("I look.", calls=[asked], reasoning=more.get("reasoning", "")),
        Message.tool(asked, f"{marked} after {took} at {date} 01:11:22, <x at 0x7f{nonce}>"),
        Message.assistant("Three."),
        Message.user("Sure?"),
    )


hexes = st.text(alphabet="0123456789abcdef", min_size=8, max_size=8)


@given(
    day=st.dates(),
    clock=st.integers(0, 235959),
    end=hexes,
    took=st.floats(0.001, 900),
    more=st.fixed_dictionaries(
        {"ident": st.text(min_size=1, max_size=12), "nonce": hexes, "reasoning": WORDS}
    ),
)
def test_ids_dates_nonces_and_durations_do_not_matter(day, clock, end, took, more):
    session = f"{day:%Y%m%d}".rjust(8, "0") + f"-{clock:06d}-{end[:6]}"
    other = story(session=session, date=day.isoformat(), took=f"{took:.1f} s", **more)
    assert key(*other) == key(*story())


@given(st.dictionaries(st.text(max_size=6), st.integers() | WORDS, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(arguments, shuffler):
    names = list(arguments)
    shuffler.shuffle(names)
    shuffled = {name: arguments[name] for name in names}
    keys = {
        key(Message.assistant(calls=[ToolCall(id="1", name="look", arguments=each)]))
        for each in (arguments, shuffled)
    }
    assert len(keys) == 1


@given(st.integers(0, 5), WORDS.filter(bool))
def test_more_text_is_another_request_unless_we_or_the_model_said_it(place, more):
    messages = list(story())
    changed = messages[place]
    parts = (*changed.parts[:-1], Text(changed.parts[-1].text + "|" + more))
    messages[place] = replace(changed, parts=parts)
    assert (key(*messages) != key(*story())) == (changed.role in ("user", "tool"))


def test_arguments_names_failures_images_and_order_count():
    base = key(*story())
    assert key(*story(name="other.csv")) != base
    assert key(*story()[:-1]) != base
    picture = Message.user("see", images=[Image("AAAA")])
    assert key(picture) != key(Message.user("see", images=[Image("AAAB")]))
    asked = ToolCall(id="1", name="look")
    assert key(Message.tool(asked, "x")) != key(Message.tool(asked, "x", failed=True))
    assert key(Message.user("a"), Message.user("b")) != key(Message.user("b"), Message.user("a"))
    assert key(Message.user("a\nb")) != key(Message(role="user", parts=(Text("a"), Text("b"))))
    # The user's own words keep their dates and durations.
    assert key(Message.user("since 2026-11-22")) != key(Message.user("since 2026-11-23"))
    assert key(Message.user("wait 5 s")) != key(Message.user("wait 6 s"))


def test_a_changed_tool_is_the_same_request():
    def other(look):
        @tool(name="look")
        def changed(path: str, lines: int = 4) -> str:
            """Look at a file."""
            return path

        return changed

    assert key(Message.user("hi"), tools=[look]) == key(Message.user("hi"), tools=[other(look)])
    assert key(Message.user("hi"), tools=[look]) == key(Message.user("hi"))
    assert key(Message.user("hi"), choice="none") == key(Message.user("hi"))


MASKED = json.loads(Path(__file__).with_name("masked.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "becomes"), MASKED)
def test_what_is_taken_out_of_results(text, becomes):
    expected = text.replace("2.5 seconds", "<duration>") if becomes is None else becomes
    assert masked(text, RESULTS).text == expected


def test_masking_takes_linear_time():
    places = Places.of([("cwd", "/a/b")])

    def mask(size):
        for piece in ("1", "0x1", " ", "2026-11-", "cell ", "12 ", "Nov  ", "untrusted-", "pid:"):
            masked(piece * (size // len(piece)), RESULTS, places)

    assert growth(mask, 20_000, 100_000) < 15


def test_places_stand_for_directories(tmp_path):
    places = Places.of([("cwd", tmp_path / "work"), ("home", tmp_path), ("root", "/")])
    text = f"{tmp_path}/work/a.csv {tmp_path}/x {tmp_path}-other /etc {tmp_path}/work."
    assert masked(text, (), places).text == (f"<cwd>/a.csv <home>/x {tmp_path}-other /etc <cwd>.")


def test_the_skills_that_ship_are_one_place_wherever_they_are(tmp_path):
    package = Path(volatile.__file__).parents[1]
    for folder in (package / "shipped_skills", package.parent / "skills"):
        view = f"[skill x, SKILL.md; folder {folder}/code/x]"
        places = Places.of([("cwd", tmp_path)])
        assert masked(view, (), places).text == "[skill x, SKILL.md; folder <skills>/code/x]"
    there = Places.here().path("skills")  # what a recorded call of a script in one is given
    assert there is not None and Path(there, "code").is_dir()


def test_the_place_of_a_notebook_is_no_news():
    def asked(context):
        return key(Message(role="user", parts=(Text("how many?"), Text(context))))

    here = (
        "[Notebook context]\nNotebook: a.ipynb\nVariables:\n- df: DataFrame 3 x 2\n"
        "The last cell failed (cell 1a2b3c4d):\nKeyError: 'x'\n"
        "Cells above this one (9f8e7d6c):\n0 1a2b3c4d code: import pandas"
    )
    there = (
        "[Notebook context]\nVariables:\n- df: DataFrame 3 x 2\n"
        "The last cell failed:\nKeyError: 'x'"
    )
    assert asked(here) == asked(there)
    assert asked(here) != asked(here.replace("3 x 2", "4 x 2"))
    update = here.replace("(9f8e7d6c):", "(1 9f8e7d6c), changes:")
    assert asked(update) == asked(there)
    assert asked(f"{there}\nCells above this one (1 9f8e7d6c): no changes") == asked(there)
    only_place = "[Notebook context]\nNotebook: a.ipynb\nCells above:\n0 1a2b3c4d code: x"
    assert asked(only_place) == key(Message.user("how many?"))
    in_the_panel = only_place.replace("above:", "above, the last one is selected:")
    assert asked(in_the_panel) == key(Message.user("how many?"))


def test_layers_from_the_users_own_home_do_not_count():
    def prompt(*personal):
        text = "\n\n".join(["You are.", *personal, "Date: 2026-01-01. Session: x.", "End."])
        return key(Message.system(text), personal=lambda: personal)

    assert prompt() == prompt("Likes penguins.") == prompt("A\n\nB", "C")


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=6), st.randoms())
def test_cells_have_names_not_ids(order, shuffler):
    """Results name cells, replies name them again: which is which counts, what it is called not."""

    def told(names):
        shown = [
            Message.tool(ToolCall(id="1", name="o"), f"cell {names[n]} (index 1)") for n in order
        ]
        last = ToolCall(id="2", name="read", arguments={"id": names[order[0]]})
        return key(*shown, Message.assistant(calls=[last]))

    def fresh():
        numbers = shuffler.sample(range(2**32), 3)
        return {n: f"{x:08x}" for n, x in zip(("one", "two", "three"), numbers, strict=True)}

    assert told(fresh()) == told(fresh())
    if len(set(order)) > 1:
        names = fresh()
        merged = dict.fromkeys(names, names["one"])
        assert told(names) != told(merged)


def test_a_reply_comes_back_with_chunks_calls_reasoning_and_cost(tmp_path):
    message = Message.assistant("Eins zwei 漢字", reasoning="Hm, so.")
    reply = Reply(message=message, usage=Usage(input=7, requests=1, cost=0.25), model="m-1")
    path = tmp_path / "a.jsonl"
    model = Cassette(ScriptedModel([reply, call("look", path="a")], window=9_000), path, "record")
    live = [ask(model), ask(model, Message.user("and?"))]
    replay = Cassette(None, path, "replay")
    assert [ask(replay), ask(replay, Message.user("and?"))] == live
    assert [type(item) for item in live[0]].count(ReasoningDelta) == 1
    assert (replay.name, replay.window) == ("scripted", 9_000)


def test_the_same_request_is_answered_in_order_and_then_with_the_last(tmp_path):
    path = tmp_path / "a.jsonl"
    assert recorded(path, ["one", "one", "two"], *"aaa") == ["one", "one", "two"]
    assert replayed(path, *"aaaaa") == ["one", "one", "two", "two", "two"]


def test_recording_again_takes_the_place_of_what_was_there(tmp_path):
    path = tmp_path / "a.jsonl"
    for _ in range(2):
        assert recorded(path, ["a1", "b1", "a2"], *"aba") == ["a1", "b1", "a2"]
        before = path.read_bytes()
    assert path.read_bytes() == before
    assert recorded(path, ["new"], "a") == ["new"]
    replies = [line["reply"]["message"] for line in lines(path) if "key" in line]
    assert [reply["parts"][0]["text"] for reply in replies] == ["new", "b1"]
    assert replayed(path, *"aba") == ["new", "b1", "new"]


def test_each_mode_asks_when_it_says_it_does(tmp_path):
    path = tmp_path / "a.jsonl"
    assert said(Cassette(ScriptedModel(["one"]), path, "off")) == "one"
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError):
        Cassette(None, path, "rewind")
    model = ScriptedModel(["one", "two"])
    made = []
    auto = Cassette(lambda: made.append(1) or model, path)
    assert not made
    assert [said(auto, p) for p in ("a", "b", "a", "b")] == ["one", "two", "one", "two"]
    assert (made, len(model.requests)) == ([1], 2)

    def none():
        raise ConfigError("set OPENAI_API_KEY")

    for absent, told in ((None, "no model is set up"), (none, "set OPENAI_API_KEY")):
        assert said(Cassette(absent, path, "auto"), "b") == "two"
        with pytest.raises(CassetteMiss, match=told):
            said(Cassette(absent, path, "auto"), "c")
    with pytest.raises(ConfigError, match=r"^set OPENAI_API_KEY"):
        said(Cassette(none, path, "record"), "c")


def test_what_comes_to_no_end_is_not_recorded(tmp_path):
    path = tmp_path / "a.jsonl"
    with Loopback(failure(401)) as server:
        model = Cassette(OpenAIChat("m", base_url=server.url, api_key="k"), path, "record")
        with pytest.raises(ModelError) as caught:
            said(model)
        asyncio.run(model.aclose())
    assert caught.value.kind is FailureKind.AUTH

    async def leave():
        model = Cassette(ScriptedModel(["one two three"]), path, "record")
        async with aclosing(model.stream(Request(messages=(Message.user("hi"),)))) as items:
            async for _ in items:
                break

    asyncio.run(leave())
    assert not path.exists()


def miss(path, *messages, **options):
    with pytest.raises(CassetteMiss) as caught:
        ask(Cassette(None, path, "replay"), *messages, **options)
    return str(caught.value)


def test_a_miss_shows_the_first_difference_to_the_nearest(tmp_path):
    path = tmp_path / "a.jsonl"
    record = Cassette(ScriptedModel(["x", "y", "z"]), path, "record")
    ask(record, *story()[:2])
    ask(record, *story())
    ask(record, Message.user("Something else entirely"))
    changed = list(story())
    result = changed[3].text.replace("three rows", "four rows")
    changed[3] = Message.tool(changed[2].calls[0], result)
    told = miss(path, *changed)
    assert "message 4 (tool) differs" in told
    assert "recorded: “…" in told and "three rows" in told and "four rows" in told
    assert "cassette auto" in told
    assert told.count("\n") <= 5 and len(told) < 700
    assert "“How many columns?”" in miss(path, story()[0], Message.user("How many columns?"))


def test_a_miss_names_tools_length_and_choice(tmp_path):
    path = tmp_path / "a.jsonl"
    hi = Message.user("hi")
    tools = Toolset([look])
    ask(Cassette(ScriptedModel([call("look", path="a")]), path, "record"), hi, tools=tools)

    @tool(name="look")
    def other(path: str, more: str = "") -> str:
        """See."""
        return path

    replay = Cassette(None, path, "replay")
    assert ask(replay, hi, tools=Toolset([other]))[-1].message.calls[0].name == "look"
    assert "no longer exist: look" in miss(path, hi)
    told = miss(path, hi, Message.user("and?"), tools=tools)
    assert "1 messages were recorded, now there are 2" in told
    assert "tool_choice" in miss(path, hi, tools=tools, tool_choice="none")
    assert "there are no recordings" in miss(tmp_path / "none.jsonl", hi)


def test_a_miss_says_what_it_cannot_tell_and_who_recorded(tmp_path):
    path, hello = tmp_path / "a.jsonl", Message.user("hello")
    recorded(path, ["x"], "hi")
    path.write_text(path.read_text().replace('"hermes_nb":"', '"hermes_nb":"0.0.'))
    assert "It was recorded by hermes_nb 0.0." in miss(path, hello)
    path.write_bytes(path.read_bytes().splitlines()[-1])
    assert "cannot be shown" in miss(path, hello)


PLAIN = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(PLAIN, JSON, max_size=5))
def test_arguments_are_replayed_in_the_order_in_which_they_were_written(arguments):
    """A line's keys are sorted; a cell shows arguments as the model wrote them."""
    asked = ToolCall(id="1", name="look", arguments=arguments, text=json.dumps(arguments))
    reply = Reply(message=Message.assistant(calls=[asked]), usage=Usage(), finish="stop", model="m")
    request = canon()(Request(messages=(Message.user("hi"),)))
    made = read(Recording.of(request, reply, (), model="m", window=None).line())
    (call_,) = made.reply.message.calls
    again = json.loads(call_.text)
    assert json.dumps(call_.arguments) == json.dumps(again)
    assert list(call_.arguments) == list(again)


def test_a_replay_of_the_embedded_model_is_named_as_it_is(tmp_path):
    """Among the cassettes of a folder: its prompt and its tools are others."""
    for name, model in (("x-embedded", EMBEDDED), ("y-other", "other")):
        recorded = ScriptedModel(["Yes."], name=model)
        said(Cassette(recorded, tmp_path / f"{name}.hermes.jsonl", "record"), name)
    also = tuple(sorted(tmp_path.glob("*.hermes.jsonl")))
    own = CassetteFiles(tmp_path / "own.jsonl", also)
    deck = Deck(mode=lambda: "replay", shelf=lambda: own, home=lambda: tmp_path)
    named = [deck.wrap(ScriptedModel, name=wanted).name for wanted in ("embedded", "")]
    assert named == [EMBEDDED, "other"]


def test_a_secret_never_gets_into_the_file_and_the_replay_still_hits(tmp_path):
    path = tmp_path / "a.jsonl"
    asked = call("look", path=f"curl -H 'Authorization: Bearer {SECRET}'", api_key="hunter2hunter2")
    tricky = call("look", path="-----BEGIN PRIVATE KEY-----", other="-----END PRIVATE KEY-----")
    steps = [[f"Your key is {SECRET}, keep it.", asked, tricky]]
    user = Message.user(f"OPENAI_API_KEY={SECRET} and password = 'correct-horse-7'")
    result = Message.tool(ToolCall(id="1", name="look"), f"token: {SECRET}")
    ask(Cassette(ScriptedModel(steps), path, "record"), user, result)
    text = path.read_text()
    for secret in (SECRET, SECRET[8:], "hunter2", "correct-horse"):
        assert secret not in text
    *deltas, reply = ask(Cassette(None, path, "replay"), user, result)
    assert "".join(each.text for each in deltas) == "Your key is [redacted], keep it."
    assert json.loads(reply.message.calls[0].text) == reply.message.calls[0].arguments
    assert json.loads(reply.message.calls[1].text) == reply.message.calls[1].arguments
    # What was redacted when it was recorded is asked in that form by a replay's next request.
    replayed = Message.assistant(reply.message.text, calls=reply.message.calls)
    asked = [replace(each, id=f"other{n}") for n, each in enumerate((asked, tricky))]
    live = Message.assistant(steps[0][0], calls=asked)
    assert key(user, replayed) == key(user, live)


@given(st.lists(st.text(max_size=12), max_size=6), st.integers(0, 3))
def test_chunks_are_kept_wherever_nothing_changed(texts, seed):
    chooser = random.Random(seed)
    pieces = [chooser.choice([TextDelta, ReasoningDelta])(text) for text in texts]
    assert recut(pieces, lambda text: text) == tuple(pieces)
    for change in (str.upper, lambda t: t + "!" if t else t, lambda t: t[1:]):
        for kind in (TextDelta, ReasoningDelta):
            whole = "".join(p.text for p in pieces if type(p) is kind)
            made = "".join(p.text for p in recut(pieces, change) if type(p) is kind)
            assert made == change(whole)


def test_a_reply_speaks_of_this_runs_things(tmp_path):
    path = tmp_path / "a.jsonl"

    def turn(place, cell):
        asked = ToolCall(id="1", name="insert")
        request = (
            Message.assistant(calls=[asked]),
            Message.tool(asked, f"inserted cell {cell} (index 2), see {place}/tmpab{cell[:6]}/x"),
        )
        here = Canon(places=lambda: Places.of([("cwd", place)]))
        return request, here

    request, here = turn("/home/ann/work", "1a2b3c4d")
    reply = ["Done in /home/ann/work: 1a2b3c4d.", call("run", id="1a2b3c4d", d="tmpab1a2b3c")]
    ask(Cassette(ScriptedModel([reply]), path, "record", canon=here), *request)
    assert "ann" not in path.read_text()
    assert "1a2b3c4d" not in path.read_text()
    request, here = turn("/builds/7", "99887766")
    *deltas, reply = ask(Cassette(None, path, "replay", canon=here), *request)
    assert "".join(d.text for d in deltas) == reply.message.text == "Done in /builds/7: 99887766."
    assert reply.message.calls[0].arguments == {"id": "99887766", "d": "tmpab998877"}
    assert json.loads(reply.message.calls[0].text) == reply.message.calls[0].arguments


def test_two_branches_merge_by_concatenation(tmp_path):
    base = tmp_path / "base.jsonl"
    recorded(base, ["zero"], "0")
    for name, prompts in (("ours", "ab"), ("theirs", "bc")):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(base.read_bytes())
        model = Cassette(ScriptedModel([f"{name} {p}" for p in prompts]), path, "auto")
        for prompt in prompts:
            said(model, prompt)
    for order in (("ours", "theirs"), ("theirs", "ours")):
        merged = tmp_path / "merged.jsonl"
        merged.write_bytes(b"".join((tmp_path / f"{n}.jsonl").read_bytes() for n in order))
        assert replayed(merged, *"0ac") == ["zero", "ours a", "theirs c"]
        assert replayed(merged, *"bbb") == [f"{order[0]} b", *[f"{order[1]} b"] * 2]
        assert not Tape(merged).problems


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\xff\xfe not text", b"<<<<<<< ours", b"{", b"[]", b"[" * 100_000, b'{"key": 1}'),
        *(
            b'{"key":"x","head":"","tools":{},"reply":{"message":{"role":' + reply
            for reply in (
                b'"user"}}}',
                b'"assistant","parts":[{"text":1}]}}}',
                b'"assistant"},"usage":{"input":-1}}}',
                b'"assistant"},"usage":{"cost":NaN}}}',
                b'"assistant"}},"deltas":[7]}',
            )
        ),
        *(b'{"at":"x"}', b"9" * 5_000),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_used(tmp_path, damage):
    path = tmp_path / "a.jsonl"
    recorded(path, ["one", "two"], *"ab")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + damage + b"\r\n\n" + b"".join(whole[2:]))
    replay = Cassette(None, path, "replay")
    assert [said(replay, p) for p in "ab"] == ["one", "two"]
    (problem,) = replay.tape.problems
    assert problem.startswith("a.jsonl, line 3: ")
    assert len(problem) < 200
    assert "line 3" in miss(path, Message.user("c"))


@given(st.binary(max_size=200))
def test_a_line_is_read_or_refused(data):
    with suppress(ValueError):
        assert isinstance(read(data), Recording | Link)


def test_every_cut_of_a_file_leaves_what_is_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    recorded(path, ["one", "two"], *"ab")
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    for size in {*range(0, len(whole), 97), *(e - 1 for e in ends), *ends}:
        path.write_bytes(whole[:size])
        # The end of a line may be missing: then it is whole all the same.
        assert len(Tape(path).recordings) == sum(end - 1 <= size for end in ends[1::2])
        assert said(Cassette(ScriptedModel(["three"]), path, "auto"), "c") == "three"
        assert replayed(path, "c") == ["three"]


def test_what_was_not_used_is_listed_and_pruned(tmp_path):
    path = tmp_path / "a.jsonl"
    recorded(path, ["one", "two", "three"], *"abc")
    ask(Cassette(ScriptedModel(["four"]), path, "record"), *story())
    path.write_bytes(path.read_bytes() + b"damaged\n" + path.read_bytes())
    replay = Cassette(None, path, "replay")
    said(replay, "b"), ask(replay, *story())
    assert [each.reply.message.text for each in replay.tape.unused()] == ["one", "three"]
    assert replay.tape.prune() == 2
    assert replay.tape.unused() == []
    assert len(lines(path)) == 2 + 7
    assert len(replay.tape.conversation(replay.tape.recordings[1])) == 6
    assert replayed(path, "b") == ["two"]
    miss(path, Message.user("a"))


def test_a_long_conversation_is_written_once(tmp_path):
    path = tmp_path / "a.jsonl"
    messages = [Message.user("x" * 1_000)]
    model = Cassette(ScriptedModel([f"answer {n}" for n in range(40)]), path, "record")
    for n in range(40):
        reply = ask(model, *messages)[-1]
        messages += [reply.message, Message.user(f"{n} " + "x" * 1_000)]
    assert len(lines(path)) == 40 + 79
    assert path.stat().st_size < 40 * 2_000


def test_files_that_cannot_be_written_fail_before_a_model_is_asked(tmp_path):
    model = ScriptedModel(["one"] * 4)
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "link.jsonl").symlink_to(target)
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "file").write_text("")
    for name in ("link.jsonl", "folder.jsonl", "pipe.jsonl", "file/a.jsonl"):
        with pytest.raises(CassetteError, match="cannot be written"):
            said(Cassette(model, tmp_path / name, "record"))
    assert target.read_text() == "mine"
    assert not model.requests


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    recorded(path, ["one"], "a")
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[: len(data) // 2]))
    with pytest.raises(CassetteError, match="disk is full"):
        recorded(path, ["two"], "b")
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_threads_and_tapes_share_one_file(tmp_path):
    path = tmp_path / "b.jsonl"
    one, other = (Cassette(ScriptedModel([f"{n}"] * 3), path, "auto") for n in "12")
    assert [said(one, "a"), said(other, "a"), said(other, "b"), said(one, "b")] == list("1122")
    assert len(Tape(path).recordings) == 2
    tape = Tape(tmp_path / "a.jsonl")

    def work(name, mode):
        for n in range(25):
            prompt = f"{name} {n}"
            model = None if mode == "replay" else ScriptedModel([prompt])
            assert said(Cassette(model, tape, mode), prompt) == prompt

    for mode in ("record", "replay"):
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, "abc", [mode] * 3))
    assert len(tape.recordings) == 75
    assert not tape.problems
    assert tape.unused() == []


def test_named_things_survive_a_round_trip():
    named = Named(Places.of([("cwd", "/home/ann/work")]))
    named.number([("cell", "1a2b3c4d"), ("session", "20261122-001122-abcdef")])
    text = "cell 1a2b3c4d of 20261122-001122-abcdef in /home/ann/work/x, not 1a2b3c4de"
    packed = named.pack(text)
    assert packed == "cell ⟦cell:1⟧ of ⟦session:1⟧ in ⟦cwd⟧/x, not 1a2b3c4de"
    assert named.unpack(packed) == text
    assert named.unpack("⟦cell:7⟧ ⟦moon⟧ ⟦⟧") == "⟦cell:7⟧ ⟦moon⟧ ⟦⟧"


def test_users_have_normalisers_of_their_own(tmp_path):
    path = tmp_path / "a.jsonl"
    hook = [lambda text: text.replace("run-18", "run-17")]
    recorded(path, ["x"], "look at run-17")
    assert said(Cassette(None, path, "replay", normalise=hook), "look at run-18") == "x"
    miss(path, Message.user("look at run-18"))


def test_a_summary_goes_through_the_same_cassette(tmp_path):
    """Its request holds results of tools, whose durations are others in every run."""
    path = tmp_path / "a.jsonl"

    def compressed(model, took):
        messages = []
        for turn in range(20):
            asked = ToolCall(id=f"{took}-{turn}", name="look", arguments={"path": f"{turn}.csv"})
            ran = wrap(f"ran in {took} s at 0x7f00{turn:04d} " + "word " * 200, source="a file")
            messages += [
                *(Message.user(f"Question {turn}"), Message.assistant(calls=[asked])),
                *(Message.tool(asked, ran), Message.assistant(f"Answer {turn}: " + "word " * 300)),
            ]
        engine = Compressor(model, window=8_000)
        engine.should_compress(max(estimate_tokens(messages), engine.gauge.threshold))
        return asyncio.run(engine.compress(messages))

    scripted = ScriptedModel(["## Goal\nCount rows."] * 8, window=8_000)
    live = compressed(Cassette(scripted, path, "record"), "0.3")
    again = compressed(Cassette(None, path, "replay"), "0.4")
    assert (again.phase, again.warning) == (live.phase, live.warning) == ("summarised", "")
    assert "Count rows." in live.summary and "Count rows." in again.summary
    assert again.messages != live.messages  # the facts in it are this run's
    assert key(*again.messages) == key(*live.messages)
    assert "untrusted-" not in again.summary
    assert "Data, not instructions" not in again.summary

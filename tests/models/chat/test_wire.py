"""Messages on the wire: right for the provider, made once, and never changed afterwards."""

from __future__ import annotations

import gc
import json

import pytest
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.models.chat.wire import PICTURES, STOPPED, UNSEEN, WireConversation
from hermes_nb.models.profiles import Profile, profile_for

CALL = ToolCall(id="call_1", name="look", arguments={"a": 1}, text='{"a":  1}')
OTHER = ToolCall(id="call_2", name="look", arguments={})


SEEING = Profile(vision=True)


def wire(*messages, profile=None):
    return [json.loads(item) for item in WireConversation(profile or Profile()).items(messages)]


def test_each_role():
    seen = Message.user("what is this", images=[Image("QUJD", "image/jpeg")])
    out = wire(
        *(Message.system("be"), seen, Message.assistant("", calls=[CALL])),
        *(Message.tool(CALL, "seen"), Message.assistant("half", interrupted=True)),
        *(Message.assistant(interrupted=True), Message.user(""), Message.assistant()),
        Message.tool(CALL, ""),
        profile=SEEING,
    )
    function = {"name": "look", "arguments": '{"a":  1}'}
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}}
    asked = {"id": "call_1", "type": "function", "function": function}
    assert out[:6] == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "what is this"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "assistant", "content": f"half\n\n{STOPPED}"},
        {"role": "assistant", "content": STOPPED},
    ]
    assert all(item["content"] for item in out[6:])


def test_a_tools_pictures_follow_its_batch():
    out = wire(
        Message.assistant("", calls=[CALL, OTHER]),
        Message.tool(CALL, "one", images=[Image("QQ==")]),
        Message.tool(OTHER, "two", images=[Image("Qg==")]),
        Message.assistant("I see"),
        profile=SEEING,
    )
    assert [item["role"] for item in out] == ["assistant", "tool", "tool", "user", "assistant"]
    assert out[3]["content"][0] == {"type": "text", "text": PICTURES}
    assert len(out[3]["content"]) == 3


def test_a_model_without_eyes_is_told_what_was_left_out():
    out = wire(
        Message.user("what is this", images=[Image("QUJD")]),
        Message.assistant("", calls=[CALL]),
        Message.tool(CALL, "one", images=[Image("QQ=="), Image("Qg==")]),
        Message.assistant("I see"),
    )
    assert out[0]["content"] == "what is this\n" + UNSEEN.format(count="1 picture")
    assert out[3] == {"role": "user", "content": f"{PICTURES} {UNSEEN.format(count='2 pictures')}"}
    assert "base64" not in json.dumps(out)


@pytest.mark.parametrize("profile", [SEEING, Profile()])
def test_a_prefix_never_changes_and_is_made_once(profile):
    conversation = WireConversation(profile)
    messages = [Message.system("s")]
    before = conversation.items(messages)
    for n in range(5):
        call = ToolCall(id=f"c{n}", name="f")
        messages += [
            Message.user(f"u{n}"),
            Message.assistant("", calls=[call]),
            Message.tool(call, "r", images=[Image("QQ==")]),
            Message.assistant("a"),
        ]
        after = conversation.items(messages)
        assert all(old is new for old, new in zip(before, after, strict=False))
        before = after


def test_bytes_go_with_their_messages():
    conversation = WireConversation(Profile())
    kept = Message.user("kept")
    conversation.items([kept, Message.user("x"), Message.tool(CALL, "r", images=[Image("QQ==")])])
    gc.collect()
    assert len(conversation._items) == 1
    assert len(conversation._pictures) == 0


@pytest.mark.parametrize("bad", ["\ud800", "\0", "a\udfffb"])
def test_what_json_cannot_carry_is_replaced(bad):
    call = ToolCall(id="c", name="f", arguments={"x": bad})
    nan = Message(role="assistant", echo={"reasoning_details": [{"x": float("nan")}]})
    items = WireConversation(Profile(echo=("reasoning_details",), echo_policy="always")).items(
        [Message.user(bad), Message.assistant(bad, calls=[call]), nan]
    )
    for item in items:
        value = json.loads(item.decode("utf-8"), parse_constant=lambda name: 1 / 0)
        assert bad not in json.dumps(value, ensure_ascii=False)


def thoughts():
    first = Message.assistant("a", reasoning="old")
    return [
        Message.user("1"),
        first,
        Message.user("2"),
        Message(
            role="assistant",
            calls=(CALL,),
            reasoning="new",
            echo={"reasoning_details": [{"text": "new"}], "raw_text": "x"},
        ),
        Message.tool(CALL, "r"),
    ]


@pytest.mark.parametrize(
    ("model", "url", "field", "first", "second"),
    [
        ("gpt-4o", None, "reasoning_content", None, None),
        ("deepseek-reasoner", "https://api.deepseek.com", "reasoning_content", None, "new"),
        ("kimi-k2-thinking", None, "reasoning_content", "old", "new"),
        ("x", "https://openrouter.ai/api/v1", "reasoning_details", None, [{"text": "new"}]),
    ],
)
def test_reasoning_goes_back_as_the_provider_wants_it(model, url, field, first, second):
    out = wire(*thoughts(), profile=profile_for(model, url))
    assert (out[1].get(field), out[3].get(field)) == (first, second)
    assert "raw_text" not in out[3]
    never = Profile(echo=(field,), echo_policy="never")
    assert "new" not in json.dumps(wire(*thoughts(), profile=never))


def test_mistral_gets_ids_of_nine_characters():
    profile = profile_for("mistral-large", "https://api.mistral.ai/v1")
    out = wire(Message.assistant("", calls=[CALL]), Message.tool(CALL, "r"), profile=profile)
    call_id = out[0]["tool_calls"][0]["id"]
    assert call_id == out[1]["tool_call_id"]
    assert len(call_id) == 9 and call_id.isalnum()

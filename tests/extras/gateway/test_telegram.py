"""The Telegram adapter against a loopback Bot API, on which only the next `offset` confirms."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import threading
from contextlib import asynccontextmanager
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.gateway.core import Answer, NotSent, Undeliverable
from hermes_nb.extras.gateway.rendering import telegram_html_of
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("telegram")
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.extras.gateway.core import open_adapter
from hermes_nb.extras.gateway.service import Gateway
from hermes_nb.models.scripted import ScriptedModel, call

ADA = {"id": 7, "is_bot": False, "first_name": "Ada"}
MALLORY = {"id": 8, "is_bot": False, "first_name": "Mallory"}
ME = {"id": 42, "is_bot": True, "first_name": "Hermes", "username": "hermes_bot"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class BotApi:
    """The Bot API on 127.0.0.1. `faults` answer the next calls of a method: (status, JSON)."""

    def __init__(self):
        self.updates, self.sent, self.confirmed, self.faults = [], [], 0, {}
        self.fetched = []
        self.ids = itertools.count(100)
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Say nothing."""

            def do_GET(self):
                api.fetched.append(self.path)
                self.reply(200, PNG, "application/octet-stream")

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                method = self.path.split("/")[2]
                given = read(self.headers["content-type"] or "", body)
                status, told = api.answered(method, given)
                self.reply(status, json.dumps(told).encode(), "application/json")

            def reply(self, status, body, kind):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:  # a long poll that was closed
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.changed = threading.Condition()
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def post(self, user=ADA, **message):
        """Have a user write a message in a private chat."""
        number = len(self.updates) + 1
        chat = {"id": user["id"], "type": "private", "first_name": user["first_name"]}
        whole = {"message_id": next(self.ids), "date": 1, "chat": chat, "from": user, **message}
        with self.changed:
            self.updates.append({"update_id": number, "message": whole})
            self.changed.notify_all()

    def answered(self, method, given):
        if self.faults.get(method):
            return self.faults[method].pop(0)
        chat = {"id": int(given.get("chat_id", 0)), "type": "private"}
        result = True
        if method == "getMe":
            result = ME
        elif method == "getUpdates":
            self.confirmed = max(self.confirmed, int(given.get("offset", 0)) - 1)
            with self.changed:
                self.changed.wait_for(self.unconfirmed, 0.2)
            result = self.unconfirmed()
        elif method == "getFile":
            size = 30_000_000 if given["file_id"] == "large" else len(PNG)
            result = {"file_id": "f", "file_unique_id": "u", "file_size": size, "file_path": "p"}
        elif method in ("sendMessage", "sendPhoto", "sendDocument"):
            message = {"message_id": next(self.ids), "date": 1, "chat": chat, "from": ME}
            self.sent.append((method, {**given, "id": message["message_id"]}))
            result = {**message, "text": "ok"}
        return 200, {"ok": True, "result": result}

    def unconfirmed(self):
        return [each for each in self.updates if each["update_id"] > self.confirmed]


def read(kind, body):
    """Return the fields of a form."""
    if kind.startswith("multipart/"):
        parsed = BytesParser().parsebytes(b"content-type: " + kind.encode() + b"\n\n" + body)
        return {
            part.get_param("name", header="content-disposition"): part.get_filename()
            or part.get_payload(decode=True).decode()
            for part in parsed.get_payload()
        }
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


@pytest.fixture
def api(home, monkeypatch):
    home.mkdir()
    with BotApi() as found:
        (home / "config.yaml").write_text(
            f"gateway:\n  telegram:\n    allow: [7]\n    base_url: {found.url}\n"
        )
        (home / ".env").write_text("TELEGRAM_BOT_TOKEN=1:x\n")
        yield found


@asynccontextmanager
async def served(home, root, *steps):
    """Serve Telegram with these answers; yield what is told, and the model."""
    told, model = [], ScriptedModel(steps)
    adapter, allowed = open_adapter("telegram", load_settings(home=home), told.append)
    gateway = Gateway(
        home, [adapter], {"telegram": allowed}, root=root, tell=told.append, model=model
    )
    task = asyncio.create_task(gateway.run())
    try:
        yield told, model
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_messages_pictures_and_files(api, home, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "plot.png").write_bytes(PNG)

    async def story():
        async with served(
            home,
            tmp_path,
            "Pong.",
            [call("send_file", path="table.csv"), call("send_file", path="plot.png")],
            "A dot.",
            "Not from you.",
        ) as (told, model):
            api.post(text="ping")
            await until(lambda: len(api.sent) == 1)
            api.post(
                MALLORY,
                text="ping",
                photo=[{"file_id": "f", "file_unique_id": "u", "width": 1, "height": 1}],
            )
            api.post(
                caption="What is this?",
                photo=[
                    {
                        "file_id": "f",
                        "file_unique_id": "u",
                        "width": 1,
                        "height": 1,
                        "file_size": 70,
                    }
                ],
            )
            await until(lambda: len(api.sent) == 4)
            api.post(
                text="buy my thing",
                forward_origin={"type": "hidden_user", "date": 1, "sender_user_name": "Eve"},
                document={
                    "file_id": "large",
                    "file_unique_id": "u",
                    "file_size": 30_000_000,
                    "file_name": "film.mp4",
                },
            )
            await until(lambda: len(api.sent) == 5)
            await until(lambda: api.confirmed == 4)
            return told, model

    told, model = asyncio.run(story())
    assert [(method, given["chat_id"]) for method, given in api.sent] == [
        ("sendMessage", "7"), ("sendMessage", "7"), ("sendDocument", "7"), ("sendPhoto", "7"),
        ("sendMessage", "7"),
    ]  # fmt: skip
    assert api.sent[0][1]["text"] == "Pong."
    assert "table.csv" in api.sent[2][1].values()
    assert len(api.fetched) == 1  # nothing of the stranger's
    assert any("8 in 8 is not in `allow`" in line for line in told)
    asked = [m for m in model.requests[-1].messages if m.role == "user"]
    assert [len(message.images) for message in asked] == [0, 1, 0]
    assert [part.origin for part in asked[2].parts] == ["ours", "outside"]
    assert "film.mp4: 30.0 MB are too large" in asked[2].text


def test_what_has_no_words_is_read_as_far_as_it_goes(api, home):
    """Also, nobody is answered for being added to a group."""

    async def story():
        adapter, _ = open_adapter("telegram", load_settings(home=home), print)
        api.post(new_chat_members=[ME], group_chat_created=True)
        api.post(location={"longitude": 1.0, "latitude": 2.0})
        messages = adapter.receive()
        found = await anext(messages)
        await messages.aclose()
        await adapter.aclose()
        return found

    found = asyncio.run(story())
    assert (found.id, found.text) == ("2", "")
    assert found.left_out == ("something that is neither an image nor a file",)


def test_an_answer_is_formatted_and_its_links_are_not_opened(api, home):
    refused = {"ok": False, "error_code": 400, "description": "can't parse entities"}
    text = "# A *list*\n\n- <b>one</b>\n  1. two\n\n"
    text += "| a |\n|---|\n| `1` |\n\n> > why\n\n```\n1 < 2\n```"

    async def story():
        adapter, _ = open_adapter("telegram", load_settings(home=home), print)
        await adapter.send(Answer(chat="7", text=text, key="k"))
        api.faults["sendMessage"] = [(400, refused)]
        await adapter.send(Answer(chat="7", text=text, key="k"))
        await adapter.aclose()

    asyncio.run(story())
    (_, formatted), (_, plain) = api.sent
    assert formatted["parse_mode"] == "HTML"
    assert formatted["text"].split("\n\n") == [
        "<b>A <em>list</em></b>",
        "• &lt;b&gt;one&lt;/b&gt;\n    1. two",
        "<pre>| a |\n|---|\n| `1` |</pre>",
        "<blockquote>why</blockquote>",
        "<pre>1 &lt; 2</pre>",
    ]
    assert "parse_mode" not in plain and plain["text"] == text
    assert all("is_disabled" in given["link_preview_options"] for given in (formatted, plain))


def test_an_answer_stands_below_its_question_or_replies_to_it(api, home, tmp_path):
    def reply(to):
        chat = {"id": 7, "type": "private"}
        return {"message_id": to, "date": 1, "chat": chat, "from": ME, "text": "?"}

    async def story():
        write = call("write_file", path="a", content="x")
        async with served(home, tmp_path, "Hello.", write, "Done.", "?", "?"):
            api.post(text="hello")
            await until(lambda: len(api.sent) == 1)
            early = next(api.ids)  # written now, delivered later
            api.post(text="write")
            await until(lambda: len(api.sent) == 2)
            api.post(text="yes", message_id=early)
            await until(lambda: len(api.sent) == 3)
            api.post(text="yes", reply_to_message=reply(api.sent[0][1]["id"]))
            await until(lambda: len(api.sent) == 4)
            assert all(
                given["text"].startswith("Please answer the question") for _, given in api.sent[2:]
            )
            assert not (tmp_path / "a").exists()
            api.post(text="yes", reply_to_message=reply(api.sent[1][1]["id"]))
            await until((tmp_path / "a").exists)

    asyncio.run(story())


def test_only_what_is_written_down_is_confirmed(api, home, tmp_path):
    """A gateway that ends between two polls leaves the message to the next one, which answers."""

    async def first():
        adapter, _ = open_adapter("telegram", load_settings(home=home), print)
        messages = adapter.receive()
        assert (await anext(messages)).text == "one"  # and is killed here
        await messages.aclose()
        await adapter.aclose()

    async def second():
        async with served(home, tmp_path, "One.", "Two."):
            await until(lambda: len(api.sent) == 2)
            await until(lambda: api.confirmed == 2)

    api.post(text="one")
    api.post(text="two")
    asyncio.run(first())
    assert api.confirmed == 0
    asyncio.run(second())
    assert sorted(given["text"] for _, given in api.sent) == ["One.", "Two."]


def test_what_the_service_says_decides_whether_it_is_sent_again(api, home, monkeypatch):
    monkeypatch.setenv("PTB_TIMEDELTA", "1")  # the library warns of its own next version
    refusals = {
        Undeliverable: (403, {"ok": False, "error_code": 403, "description": "Forbidden: blocked"}),
        NotSent: (
            429,
            {"ok": False, "error_code": 429, "description": "x", "parameters": {"retry_after": 1}},
        ),
    }

    moved = {"ok": False, "error_code": 400, "description": "x"}
    moved = 400, {**moved, "parameters": {"migrate_to_chat_id": -100}}

    async def story():
        adapter, _ = open_adapter("telegram", load_settings(home=home), print)
        for kind, answer in refusals.items():
            api.faults["sendMessage"] = [answer]
            with pytest.raises(kind):
                await adapter.send(Answer(chat="7", text="x", key="k"))
        api.faults["sendMessage"] = [moved]
        for chat in ("7", "@cooks"):
            with pytest.raises(Undeliverable):
                await adapter.send(Answer(chat=chat, text="x", key="k"))
        await adapter.send(Answer(chat="7", text="x", key="k", again=True))
        await adapter.aclose()

    asyncio.run(story())
    assert "copy" in api.sent[-1][1]["text"]


def test_a_service_that_is_down_is_asked_again_and_a_wrong_token_ends_it(
    api, home, tmp_path, monkeypatch
):
    monkeypatch.setattr("hermes_nb.extras.gateway.telegram.PAUSES", (0.05,))
    api.faults["getUpdates"] = [(502, {"ok": False, "error_code": 502, "description": "down"})]

    async def story():
        async with served(home, tmp_path, "Here."):
            api.post(text="there?")
            await until(lambda: api.sent)

    async def refused():
        async with served(home, tmp_path):
            await until(lambda: not api.faults["getMe"])
            await asyncio.sleep(0.3)

    asyncio.run(story())
    api.faults["getMe"] = [(401, {"ok": False, "error_code": 401, "description": "Unauthorized"})]
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(refused())
    wrong = "does not accept the bot token in TELEGRAM_BOT_TOKEN$"  # and it is not printed
    assert caught.group_contains(ConfigError, match=wrong, depth=1)


def test_what_an_inline_bot_wrote_is_nobodys_own_words(api, home):
    async def story():
        adapter, _ = open_adapter("telegram", load_settings(home=home), print)
        bot = {"id": 99, "is_bot": True, "first_name": "Pics", "username": "pics_bot"}
        api.post(text="run the command", via_bot=bot)
        messages = adapter.receive()
        found = await anext(messages)
        await messages.aclose()
        await adapter.aclose()
        return found

    found = asyncio.run(story())
    assert (found.text, found.quoted) == ("", "run the command")


PIECES = [*"# - > | 1. ``` ` * _ ~~ < & [a](b:c) x ---".split(), "\n", "\n\n", "    "]


@given(st.lists(st.sampled_from(PIECES)).map(" ".join))
def test_whatever_is_written_only_known_tags_come_out_and_each_is_closed(text):
    opened = []
    for closes, tag in re.findall(r"<(/?)(\w+)[^<>]*>", telegram_html_of(text)):
        assert tag in ("b", "strong", "em", "s", "code", "pre", "a", "blockquote")
        assert not closes or opened.pop() == tag
        opened += [] if closes else [tag]
    assert opened == []

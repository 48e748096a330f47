"""The page for trying the gateway, as HTTP: who may use it, what it shows, what outlives it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import asynccontextmanager

import pytest
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.gateway.core import Answer, Incoming, open_adapter
from hermes_nb.extras.gateway.service import Gateway
from hermes_nb.models.scripted import ScriptedModel, call

from tests.loopback import Loopback, says


@asynccontextmanager
async def page(home, root, *steps):
    """Serve the page; yield a function that asks it, given a path, and a body to post."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("gateway:\n  web:\n    port: 0\n")
    told = []
    web, allowed = open_adapter("web", load_settings(home=home), told.append)
    gateway = Gateway(
        home, [web], {"web": allowed}, root=root, tell=told.append, model=ScriptedModel(steps)
    )
    task = asyncio.create_task(gateway.run())
    async with asyncio.timeout(20):
        while not told:
            await asyncio.sleep(0.01)
    base, _, token = told[0].removeprefix("web: ").partition("/?token=")

    async def ask(path, *, body=None, headers=None, token=token):
        sign = "&" if "?" in path else "?"
        request = urllib.request.Request(
            f"{base}{path}{sign}token={token}", data=body, headers=headers or {}
        )

        def fetch():
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers, error.read()

        return await in_thread(fetch)

    ask.web, ask.base, ask.token = web, base, token
    try:
        yield ask
    finally:
        task.cancel()
        await asyncio.wait([task])


def form(text, seen=0, **files):
    """Return the body of a form and its headers; so many lines were displayed when it was typed."""
    parts = [
        f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (("text", text), ("seen", seen))
    ]
    for name, data in files.items():
        head = f'--x\r\ncontent-disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    kind = {"content-type": "multipart/form-data; boundary=x"}
    return {"body": b"".join([*parts, b"--x--\r\n"]), "headers": kind}


async def said(ask, count):
    """Wait until so many messages are there and return them."""
    found, after = [], 0
    async with asyncio.timeout(20):
        while len(found) < count:
            _, _, data = await ask(f"/messages?after={after}")
            told = json.loads(data)
            found, after = [*found, *told["messages"]], told["last"]
    return found


def test_a_talk_with_files_both_ways(home, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")

    async def story():
        steps = [call("send_file", path="table.csv")], "See **here** <script>alert(1)</script>"
        async with page(home, tmp_path, *steps) as ask:
            status, _, _ = await ask("/messages", **form("what is in it?", **{"a.txt": b"note"}))
            assert status == 200
            mine, answer, file = await said(ask, 3)
            assert (mine["by"], mine["text"]) == ("you", "what is in it?")
            _, headers, data = await ask(mine["files"][0]["at"])
            assert data == b"note" and headers["content-disposition"] == "attachment"
            assert "<strong>here</strong>" in answer["html"] and "<script" not in answer["html"]
            assert file["files"][0]["name"] == "table.csv"
            _, headers, data = await ask(file["files"][0]["at"])
            assert data == b"a,b\n"
            assert "sandbox" in headers["content-security-policy"]

    asyncio.run(story())


def test_the_page_says_what_hermes_does(home, tmp_path):
    """A stop has to be at hand for as long as a message has no answer."""

    async def story():
        async with page(home, tmp_path, call("write_file", path="a", content="b"), "Done.") as ask:

            async def told(**wanted):
                async with asyncio.timeout(20):
                    while True:
                        state = await ask.web.after(0)
                        if {name: state[name] for name in wanted} == wanted:
                            return
                        await asyncio.sleep(0.01)

            await ask("/messages", **form("make it"))
            await told(working=True, asking=True)
            await ask.web.acknowledge(Incoming(id="what said yes", chat="page", user="", text=""))
            await told(working=True, asking=False)
            await ask("/messages", **form("yes"))  # typed before the question was displayed
            await told(working=True, asking=True)
            await ask("/messages", **form("no", seen=(await ask.web.after(0))["last"]))
            await told(working=False, asking=False)

    asyncio.run(story())


def test_lines_stay_lines_and_no_style_is_asked_for(home, tmp_path):
    """The policy of the page refuses styles, and a list of commands is no paragraph."""

    async def story():
        table = "one\ntwo\n\n| a | b |\n|--:|---|\n| 1 | 2 |"
        async with page(home, tmp_path, table) as ask:
            await ask("/messages", **form("a table"))
            _, answer = await said(ask, 2)
            assert "one<br>" in answer["html"] and "<td>1</td>" in answer["html"]
            assert "style" not in answer["html"]

    asyncio.run(story())


def test_only_who_has_the_address_is_let_in(home, tmp_path):
    async def story():
        async with page(home, tmp_path) as ask:
            for path in ("/", "/messages", "/files/0/0"):
                for token in ("", "wrong", ask.token[:-1], "é"):
                    given = urllib.parse.quote(token)
                    assert (await ask(path, token=given))[0] == 403
                assert (await ask(path, headers={"host": "evil.example"}))[0] == 403
            status, _, _ = await ask("/messages", **form("hello"), token="wrong")
            assert status == 403
            assert (await ask("/files/9/0"))[0] == 404
            assert (await ask("/messages", **form(" ")))[0] == 400
            status, headers, data = await ask("/")
            assert status == 200
            (nonce,) = set(re.findall(rb'nonce="([^"]+)"', data))
            assert f"script-src 'nonce-{nonce.decode()}'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (home / "gateway" / "web" / "token").stat().st_mode & 0o077 == 0

    asyncio.run(story())


def test_no_log_line_has_the_token(home, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    async def story():
        async with page(home, tmp_path) as ask:
            # Requests are not logged; these are, as by Tornado's default.
            ask.web._server.request_callback.site.settings.pop("log_function")
            (home / "gateway" / "web" / "said.jsonl").mkdir()
            assert (await ask("/messages", **form("hello")))[0] == 500
            for path in ("/", "/nowhere", "/files/9/0", "/?after=x&%74oken=y"):
                await ask(path)
            near = ask.token[:-1]
            for wrong in (near, f"{near}%ff"):
                assert (await ask("/", token=wrong))[0] == 403
            return near

    near = asyncio.run(story())
    assert "Uncaught exception POST /messages" in caplog.text  # the 500
    assert "404 GET /nowhere" in caplog.text
    assert near not in caplog.text


def test_what_was_said_is_there_after_a_restart_and_nothing_twice(home, tmp_path):
    async def first():
        async with page(home, tmp_path, "Hello.") as ask:
            await ask("/messages", **form("hello"))
            await said(ask, 2)
            return ask.token

    async def second():
        async with page(home, tmp_path) as ask:
            await ask.web.send(Answer(chat="page", text="Once.", key="k"))
            await ask.web.send(Answer(chat="page", text="Once.", key="k"))
            found = await said(ask, 3)
            assert [each["text"] for each in found] == ["hello", "Hello.", "Once."]
            return ask.token

    assert asyncio.run(first()) == asyncio.run(second())


def test_an_answer_that_could_not_be_kept_is_not_taken_for_sent(home, tmp_path):
    async def story():
        async with page(home, tmp_path) as ask:
            file, answer = (
                home / "gateway" / "web" / "said.jsonl",
                Answer(chat="page", text="Once.", key="k"),
            )
            file.mkdir()
            with pytest.raises(IsADirectoryError):
                await ask.web.send(answer)
            file.rmdir()
            await ask.web.send(answer)
            assert [each["text"] for each in await said(ask, 1)] == ["Once."]

    asyncio.run(story())


def test_what_was_typed_before_a_kill_is_answered_after_it(home, tmp_path):
    async def typed():
        async with page(home, tmp_path) as ask:
            line = {"by": "you", "key": "k1", "text": "still there?", "files": []}
            file = home / "gateway" / "web" / "said.jsonl"
            file.write_text(json.dumps(line) + '\n{"by": "you", "ke')
            return ask.token

    async def story():
        async with page(home, tmp_path, "Yes.") as ask:
            found = await said(ask, 2)
            assert [each["text"] for each in found] == ["still there?", "Yes."]

    asyncio.run(typed())
    asyncio.run(story())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("", "gateway.telegram is not set up"),
        ("telegram: {}", "allow is empty"),
        ("telegram: {allow: 7}", "use a list"),
        ("telegram: {allow: [7]}", "TELEGRAM_BOT_TOKEN is not set"),
        ("telegram: {allow: [7]}, max_bytes: 20MB", "max_bytes is '20MB'"),
        ("nowhere: {allow: [7]}", "there is no adapter 'nowhere'"),
        ("mail: {allow: [a@b.c], address: h@b.c, imap: b.c, smtp: b.c, every: x}", "every is 'x'"),
    ],
)
def test_what_is_not_set_up_is_said(home, config, told):
    if "TOKEN" in told:
        pytest.importorskip("telegram")
    home.mkdir()
    (home / "config.yaml").write_text(f"gateway: {{{config}}}")
    name = config.partition(":")[0] if ":" in config else "telegram"
    with pytest.raises(Exception, match=told):
        open_adapter(name, load_settings(home=home), print)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("web: {port: high}", "gateway.web.port is 'high'"),
        ("approve: sometimes", "approve is 'sometimes'"),
        ("idle_minutes: long", "gateway.idle_minutes is 'long'"),
    ],
)
def test_what_is_set_up_wrongly_ends_the_gateway_when_it_begins(home, tmp_path, config, told):
    home.mkdir()
    (home / "config.yaml").write_text(f"gateway: {{{config}}}")

    async def run():
        web, allowed = open_adapter("web", load_settings(home=home), print)
        await Gateway(home, [web], {"web": allowed}, root=tmp_path, tell=print).run()

    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        asyncio.run(run())
    error = caught.value
    assert told in str(error.exceptions[0] if isinstance(error, ExceptionGroup) else error)


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped_and_once_for_a_home(home, tmp_path):
    home.mkdir()
    (home / "config.yaml").write_text("gateway: {web: {port: 0}}")
    command = [sys.executable, "-m", "hermes_nb.cli", "gateway"]
    with Loopback(says("Four.")) as server:
        environment = {**os.environ, "HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "m"}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        ) as serving:
            try:
                assert (
                    serving.stderr.readline()
                    == f"web: running in {tmp_path}; press Ctrl+C to stop\n"
                )
                base, _, token = serving.stderr.readline()[5:].strip().partition("/?")
                asked = urllib.request.Request(f"{base}/messages?{token}", **posted("2 + 2?"))
                urllib.request.urlopen(asked, timeout=30).close()
                found, until = [], time.monotonic() + 30
                while len(found) < 2 and time.monotonic() < until:
                    with urllib.request.urlopen(f"{base}/messages?{token}", timeout=30) as answer:
                        found = json.load(answer)["messages"]
                assert [each["text"] for each in found] == ["2 + 2?", "Four."]
                second = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
                assert second.returncode == 1
                assert "a gateway for this Hermes directory is already running" in second.stderr
            finally:
                serving.terminate()
            assert serving.wait(20) == 130


def posted(text):
    given = form(text)
    return {"data": given["body"], "headers": given["headers"]}

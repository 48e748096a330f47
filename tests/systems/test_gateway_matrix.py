"""The gateway on a real Matrix server: talk, files, questions, bursts, kills, strangers."""

from __future__ import annotations

import itertools
import json
import signal
import struct
import zlib
from pathlib import Path

import pytest

from tests.environments import environment
from tests.loopback import free_port
from tests.systems.chat_servers import NAME, Matrix, synapse
from tests.systems.gateway_process import Model, Process, waited

BOT = f"@bot:{NAME}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with synapse(tmp_path_factory.mktemp("synapse")) as url:
        yield url


@pytest.fixture(autouse=True)
def python(monkeypatch):
    """Run gateways where matrix-nio is installed."""
    found = environment("gateway", "matrix-nio") / "bin" / "python"
    monkeypatch.setattr(Process, "python", str(found))


@pytest.fixture(scope="module")
def model():
    with Model() as running:
        yield running


_numbers = itertools.count(1)


@pytest.fixture
def people(server):
    """A bot of its own, one who is allowed and one who is not, with names that nobody has."""
    number = next(_numbers)
    return [Matrix(server, f"{name}{number}") for name in ("bot", "ada", "mallory")]


@pytest.fixture
def gateway(people, server, model, tmp_path):
    bot, ada, _ = people
    settings = {"homeserver": server, "user": bot.id, "allow": [ada.id]}
    process = Process(
        tmp_path, model, {"matrix": settings, "question_minutes": 1}, MATRIX_PASSWORD="pw"
    )
    process.start()
    waited((process.home / "gateway" / "matrix" / "state.json").exists, process)
    waited(lambda: "position" in position(process), process)
    yield process
    if process.runs:
        process.stop()


def position(process):
    path = process.home / "gateway" / "matrix" / "state.json"
    return json.loads(path.read_text("utf-8"))


def heard(ada, room, bot, count, gateway, seconds=90):
    """Wait for so many messages of the bot and return them."""
    waited(lambda: len(ada.heard(room, bot.id)) >= count, gateway, seconds)
    return ada.heard(room, bot.id)


def png(width=2, height=2):
    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_talk_files_and_pictures_both_ways(people, gateway, model):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.say(room, "hello, before the bot has joined")
    assert heard(ada, room, bot, 1, gateway) == ["You said: hello, before the bot has joined"]
    ada.upload(room, "t.csv", b"a,b\n1,2\n", "text/csv")
    ada.upload(room, "dot.png", png(), "image/png", filename="dot.png", body="What is this?")
    _, table, picture = heard(ada, room, bot, 3, gateway)
    assert "t.csv (8 B)" in table
    assert "What is this?" in picture and "[picture]" in picture
    path = table.partition("[Attached: ")[2].partition(" (")[0]
    assert Path(path).read_bytes() == b"a,b\n1,2\n"
    (gateway.work / "out.csv").write_text("x,y\n3,4\n")
    (gateway.work / "plot.png").write_bytes(png())
    ada.say(room, 'call send_file {"path": "out.csv"}')
    waited(lambda: len(ada.heard(room, bot.id)) >= 5, gateway)
    ada.say(room, 'call send_file {"path": "plot.png"}')
    heard(ada, room, bot, 7, gateway)
    sent = [each["content"] for each in ada.messages(room) if "url" in each["content"]]
    kinds = [(each["msgtype"], each["body"]) for each in sent[-2:]]
    assert kinds == [("m.file", "out.csv"), ("m.image", "plot.png")]
    assert ada.download(sent[-2]["url"]) == b"x,y\n3,4\n"
    assert ada.download(sent[-1]["url"]) == png()


def test_a_long_answer_is_shown_as_what_it_is_and_nothing_of_it_is_obeyed(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    text = "**bold** `code` <script>alert(1)</script> ![x](http://evil.test/x.png) "
    ada.say(
        room,
        text + "[go](javascript:alert(1)) [ok](https://example.org)\n\n" + "word word\n" * 4_500,
    )
    heard(ada, room, bot, 3, gateway)
    contents = [e["content"] for e in ada.messages(room) if e["sender"] == bot.id]
    first = contents[0]["formatted_body"]
    assert "<strong>bold</strong>" in first and "<code>code</code>" in first
    assert '<a href="https://example.org"' in first
    assert not any(bad in first for bad in ("<script", "<img", 'href="javascript'))
    assert sum(each["body"].count("word") for each in contents) == 9_000


def test_a_question_is_answered_by_a_reply_and_commands_work(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.say(room, 'call write_file {"path": "a.txt", "content": "made"}')
    assert "Hermes wants to use write_file" in heard(ada, room, bot, 1, gateway)[0]
    question = ada.messages(room)[-1]["event_id"]
    relation = {"m.in_reply_to": {"event_id": question}}
    # As older clients do it: what is answered stands in front, and is nobody's yes.
    ada.say(room, f"> <{bot.id}> Hermes wants to\n> no\n\nyes", **{"m.relates_to": relation})
    heard(ada, room, bot, 2, gateway)
    assert (gateway.work / "a.txt").read_text() == "made"
    ada.say(room, "/undo")
    assert "Undone" in heard(ada, room, bot, 3, gateway)[2]
    assert not (gateway.work / "a.txt").exists()
    ada.say(room, "/new")
    assert "new session" in heard(ada, room, bot, 4, gateway)[3]
    ada.say(room, 'call write_file {"path": "b.txt", "content": "made"}')
    heard(ada, room, bot, 5, gateway)
    ada.say(room, "yes", **{"m.relates_to": relation})  # to the question before
    assert "Please answer the question" in heard(ada, room, bot, 6, gateway)[5]
    assert not (gateway.work / "b.txt").exists()
    ada.say(room, "yes")  # below the question
    heard(ada, room, bot, 7, gateway)
    assert (gateway.work / "b.txt").read_text() == "made"
    ada.say(room, 'call write_file {"path": "c.txt", "content": "made"}')
    waited(lambda: "c.txt" in "".join(ada.heard(room, bot.id)[7:]), gateway)
    ada.say(room, "/stop")
    waited(lambda: "Stopped." in ada.heard(room, bot.id), gateway)
    assert not (gateway.work / "c.txt").exists()


def test_a_burst_while_the_gateway_is_away_is_answered_whole_and_in_order(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.say(room, "first")
    heard(ada, room, bot, 1, gateway)
    gateway.stop()
    for number in range(150):  # more than a sync gives: the rest is read back
        ada.say(room, f"/model m{number}")
    gateway.start()
    said = heard(ada, room, bot, 151, gateway, 150)
    chosen = [each.split(";")[0] for each in said[1:]]
    assert chosen == [f"This chat now uses m{number}" for number in range(150)]


def test_a_kill_anywhere_loses_nothing_and_nothing_is_said_twice(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.say(room, "first")
    heard(ada, room, bot, 1, gateway)
    for number in range(12):
        ada.say(room, f"message {number}")
        if number % 4 == 3:
            heard(ada, room, bot, number - 1, gateway)
            gateway.kill()
            gateway.start()
    said = heard(ada, room, bot, 13, gateway, 120)
    assert said == ["You said: first", *(f"You said: message {n}" for n in range(12))]


def test_a_login_that_is_over_is_made_anew_on_the_same_device(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.say(room, "first")
    heard(ada, room, bot, 1, gateway)
    before = position(gateway)
    bot._token = before["token"]
    bot.ask("POST", "logout", {})
    ada.say(room, "second")
    assert heard(ada, room, bot, 2, gateway)[1] == "You said: second"
    after = position(gateway)
    assert after["device"] == before["device"] and after["token"] != before["token"]


def test_strangers_edits_notices_and_imitations_are_not_answered(people, gateway, model):
    bot, ada, mallory = people
    asked = len(model.exchanges)
    mallory.ask("PUT", f"profile/{mallory.id}/displayname", {"displayname": ada.id})
    theirs = mallory.room(bot.id)
    mallory.say(theirs, "let me in")
    room = ada.room(bot.id, mallory.id)
    mallory.ask("POST", f"join/{room}", {})
    for text in ("/new", "/stop", "yes", f"I am {ada.id}", "/model evil"):
        mallory.say(room, text)
    said = ada.say(room, "hello")
    heard(ada, room, bot, 1, gateway)
    ada.send(room, {"msgtype": "m.notice", "body": "a bot's word"})
    new = {"msgtype": "m.text", "body": "edited"}
    relation = {"rel_type": "m.replace", "event_id": said}
    ada.send(room, {**new, "body": "* edited", "m.new_content": new, "m.relates_to": relation})
    ada.send(room, {"msgtype": "m.file", "body": "x", "url": 7})
    way_out = {"msgtype": "m.file", "body": "x", "url": "mxc://../../../v3/account/whoami"}
    ada.send(room, way_out)
    ada.send(room, {"msgtype": "m.text", "body": "odd", "m.relates_to": {"rel_type": 7}})
    first, way_out, odd = heard(ada, room, bot, 3, gateway)
    assert (first, odd) == ("You said: hello", "You said: odd")
    assert "x: its address is not the address of a file" in way_out
    assert mallory.members(theirs)[bot.id] == "invite"
    assert len(model.exchanges) == asked + 3
    assert f"{mallory.id} in {room} is not in `allow`" in gateway.told
    # What somebody else wrote in a question's room is no answer to it.
    ada.say(room, 'call write_file {"path": "a.txt", "content": "made"}')
    heard(ada, room, bot, 4, gateway)
    mallory.say(room, "yes")
    ada.say(room, "no, thanks")
    assert "the user declined: thanks" in heard(ada, room, bot, 5, gateway)[4]
    assert not (gateway.work / "a.txt").exists()


def test_an_encrypted_room_and_a_file_that_is_too_large_are_told(people, gateway):
    bot, ada, _ = people
    room = ada.room(bot.id)
    ada.upload(room, "big.bin", b"x" * 21_000_000, "application/octet-stream", info={"size": 1})
    assert "it has more than 20,000,000 bytes" in heard(ada, room, bot, 1, gateway)[0]
    state = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    closed = ada.room(bot.id, initial_state=[{**state, "state_key": ""}])
    waited(lambda: ada.members(closed).get(bot.id) == "join", gateway)
    secret = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "sender_key": "x"}
    secret |= {"device_id": "x", "session_id": "x"}
    ada.ask("PUT", f"rooms/{closed}/send/m.room.encrypted/1", secret)
    waited(lambda: "cannot read encrypted" in "".join(ada.heard(closed, bot.id)), gateway)


def test_a_wrong_password_ends_it(people, server, model, tmp_path):
    bot, ada, _ = people
    settings = {"homeserver": server, "user": bot.id, "allow": [ada.id]}
    process = Process(tmp_path, model, {"matrix": settings}, MATRIX_PASSWORD="wrong")
    process.start()
    waited(lambda: not process.runs, process)
    assert "gateway.matrix cannot connect: M_FORBIDDEN" in process.told
    assert "Traceback" not in process.told


def test_a_server_that_is_away_is_waited_for(model, tmp_path):
    port, folder = free_port(), tmp_path / "synapse"
    folder.mkdir()
    with synapse(folder, port) as url:
        bot, ada = Matrix(url, "bot"), Matrix(url, "ada")
        settings = {"homeserver": url, "user": bot.id, "allow": [ada.id]}
        gateway = Process(tmp_path, model, {"matrix": settings}, MATRIX_PASSWORD="pw")
        gateway.start()
        room = ada.room(bot.id)
        ada.say(room, "hello")
        heard(ada, room, bot, 1, gateway)
    waited(lambda: "trying again in" in gateway.told, gateway)
    with synapse(folder, port):
        ada.say(room, "are you there?")
        assert heard(ada, room, bot, 2, gateway)[1] == "You said: are you there?"
        gateway.stop()


def test_it_ends_at_once_and_in_good_order(gateway):
    gateway.stop(signal.SIGINT)
    assert "Traceback" not in gateway.told

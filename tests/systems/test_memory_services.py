"""Mem0 in process, a Hindsight server and Honcho's client, each with sessions that follow another.

What a service keeps and finds is its own affair, so a session is led in one process and asked about
in the next. The model and the embeddings behind the services are a server here; Honcho's own server
is not published, and its client talks to one that answers as its requests want it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.e2e.harness import import_path
from tests.environments import environment
from tests.loopback import free_port

FACT = "Ada likes tables and dislikes pie charts."
KEY = "sk-ant-" + "a1B2" * 6
SIZE = 384
COUNTED = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
STORY = f"""
import sys, threading, time
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
from pathlib import Path

if sys.argv[1] == "tell":
    Path("plan.txt").write_text("the planted plan")
    with Hermes(ScriptedModel([call("read_file", path="plan.txt"), "Noted."])) as hermes:
        hermes.ask({FACT!r} + " My key is {KEY}.")
    for thread in threading.enumerate():
        if thread.name.startswith("memory "):
            thread.join(60)  # until it has noted all
    print(hermes.warnings)
else:
    with Hermes(ScriptedModel(["Tables."] * 5)) as hermes:
        for _ in range(5):  # on a busy machine what it recalls comes with the next message
            message = hermes.ask("What does Ada like?").messages[0].text
            if "From memory" in message:
                break
            time.sleep(2)
    print(hermes.warnings, message)
"""


class Model(BaseHTTPRequestHandler):
    """A model that finds one fact in whatever it reads, and embeddings by words."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(json.dumps(body))
        if "embeddings" in self.path:
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            data = [
                {"object": "embedding", "index": i, "embedding": vector(text)}
                for i, text in enumerate(texts)
            ]
            return self.say({"object": "list", "data": data, "model": "m", "usage": COUNTED})
        fact = {"what": FACT, "when": "N/A", "where": "N/A", "who": "Ada", "why": "N/A"}
        kinds = {"fact_kind": "conversation", "fact_type": "world", "entities": [{"text": "Ada"}]}
        content = json.dumps(
            {
                "facts": [fact | kinds],
                "memory": [{"id": "0", "text": FACT, "event": "ADD"}],
            }
        )
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        about = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        return self.say({**about, "choices": [choice], "usage": COUNTED})

    def say(self, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class HonchoServer(Model):
    """Takes messages, and represents somebody by those that share a word with what is asked.

    Its paths and answers are those of the client's requests, all of which are posts.
    """

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        self.server.seen.append(json.dumps(body))
        common = {"metadata": {}, "configuration": {}, "created_at": "2026-01-01T00:00:00Z"}
        *_, kind, last = self.path.partition("?")[0].split("/")
        if last == "messages":
            made = [
                {
                    "id": str(i),
                    "session_id": kind,
                    "workspace_id": "w",
                    "token_count": 1,
                    **common,
                    **m,
                }
                for i, m in enumerate(body["messages"])
            ]
            self.server.kept += [m["content"] for m in body["messages"]]
            return self.say(made)
        if last == "representation":
            words = set(re.findall(r"\w{3,}", body["search_query"].lower()))
            near = [text for text in self.server.kept if words & set(text.lower().split())]
            return self.say({"representation": "\n".join(near)})
        name = body.get("id", kind)
        return self.say({"id": name, "workspace_id": "w", "is_active": True, **common})


def vector(text: str) -> list[float]:
    """Return a bag of hashed words: texts with the same words are near each other."""
    found = [0.01] * SIZE
    for word in re.findall(r"\w+", str(text).lower()):
        found[int(hashlib.md5(word.encode()).hexdigest(), 16) % SIZE] += 1
    return found


@contextlib.contextmanager
def serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.seen, server.kept = [], []
    Thread(target=server.serve_forever, daemon=True).start()
    yield server, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def led(tmp_path):
    """Lead a conversation with a service, ask about it in another; return the message as sent."""
    python = environment("memory-services", "pandas") / "bin" / "python"

    def lead(name: str, **settings: object) -> str:
        home = tmp_path / "home"
        home.mkdir()
        memory = {"provider": name, name: {"user": "ada", **settings}}
        (home / "config.yaml").write_text(yaml.safe_dump({"memory": memory}), "utf-8")
        own = {"HERMES_HOME": str(home), "PYTHONPATH": import_path(), "OPENAI_API_KEY": "x"}
        for what in ("tell", "ask"):
            done = subprocess.run(
                [python, "-c", STORY, what],
                env={**os.environ, **own},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            print(done.stdout, done.stderr)
            assert done.returncode == 0
        return done.stdout

    return lead


def test_mem0_remembers_in_this_process(led):
    with serving(Model) as (server, url):
        endpoint = {"model": "m", "openai_base_url": url, "api_key": "x"}
        config = {
            "llm": {"provider": "openai", "config": endpoint},
            "embedder": {"provider": "openai", "config": {**endpoint, "embedding_dims": SIZE}},
        }
        message = led("mem0", config=config)
        sent = "\n".join(server.seen)
    assert f"[From memory (Mem0): background, not part of the request]\n- {FACT}" in message
    assert FACT in sent
    assert KEY not in sent
    assert "the planted plan" not in sent


def test_honcho_is_told_and_asked(led):
    with serving(HonchoServer) as (server, url):
        message = led("honcho", url=url)
    assert f"[From memory (Honcho): background, not part of the request]\n{FACT}" in message
    assert "Noted." in server.kept
    sent = "\n".join(server.seen)
    assert KEY not in sent
    assert "the planted plan" not in sent


@pytest.fixture
def database():
    """The address of a PostgreSQL of its own, with pgvector."""
    (pg0,) = environment("hindsight-server").glob("lib/python*/site-packages/pg0/bin/pg0")
    folder = Path(f"/tmp/hindsight-{os.getpid()}")  # a home that others than root may enter
    folder.mkdir(mode=0o755)
    program = shutil.copy(pg0, folder / "pg0")
    somebody = []
    if os.geteuid() == 0:  # PostgreSQL refuses root
        shutil.chown(folder, "nobody", "nogroup")
        somebody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    port = free_port()
    account = ["--username", "owner", "--password", "pw", "--database", "d"]
    run = partial(
        subprocess.run,
        env={**os.environ, "HOME": str(folder), "LC_ALL": "C.UTF-8"},
        cwd=folder,
        timeout=60,
    )
    run([*somebody, program, "start", "--name", "h", "--port", str(port), *account], check=True)
    yield f"postgresql://owner:pw@127.0.0.1:{port}/d"
    run([*somebody, program, "stop", "--name", "h"], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def hindsight(database, tmp_path):
    """The address of a Hindsight server."""
    with serving(Model) as (_, url):
        wants = {
            "DATABASE_URL": database,
            "LLM_PROVIDER": "openai",
            "LLM_BASE_URL": f"{url}/v1",
            "LLM_API_KEY": "x",
            "LLM_MODEL": "m",
            "EMBEDDINGS_PROVIDER": "openai",
            "EMBEDDINGS_OPENAI_BASE_URL": f"{url}/v1",
            "EMBEDDINGS_OPENAI_API_KEY": "x",
            "EMBEDDINGS_OPENAI_MODEL": "m",
            "RERANKER_PROVIDER": "rrf",
        }
        settings = {f"HINDSIGHT_API_{name}": value for name, value in wants.items()}
        port, log = free_port(), tmp_path / "log"
        python = environment("hindsight-server") / "bin" / "python"
        command = [python, "-m", "hindsight_api.main", "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, env=os.environ | settings, cwd=tmp_path, stdout=said, stderr=said
            )
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{address}/health", process, log)
            yield address
        finally:
            process.terminate()
            process.wait(20)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text("utf-8")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=5).close()
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text("utf-8"))


def test_a_hindsight_server_remembers(led, hindsight):
    message = led("hindsight", url=hindsight)
    assert "[From memory (Hindsight): background, not part of the request]\n- " in message
    assert "tables" in message.partition("request]")[2]

"""A running `jupyter hermes proxy` between a provider on 127.0.0.1 and users whom a hub knows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.loopback import Loopback, free_port

SECRET = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
TOKENS = {
    "ada-token": {"kind": "user", "name": "ada", "scopes": ["access:services!service=hermes"]},
    "bob-token": {"kind": "user", "name": "bob", "scopes": ["access:services"]},
    "eve-token": {"kind": "user", "name": "eve", "scopes": ["access:servers!server=eve/"]},
    "service-token": {"kind": "service", "name": "cull", "scopes": ["access:services"]},
}


class Hub(BaseHTTPRequestHandler):
    """What a hub says of a token; a real one is in tests/systems."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        token = self.headers["Authorization"].removeprefix("token ")
        found = TOKENS.get(token) if self.path == "/hub/api/user" else None
        self.server.asked.append(token)
        body = json.dumps(found or {"message": "no"}).encode()
        self.send_response(200 if found else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Proxy:
    """A running proxy, and requests to it."""

    def __init__(self, folder, provider, hub, **more):
        (folder / "key").write_text(f"{SECRET}\n")
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = folder / "proxy.yaml"
        rules = {
            "upstream": provider,
            "key_file": str(folder / "key"),
            "ledger": str(folder / "spent.db"),
            "models": {"small": {"input": 1, "output": 10, "cached": 0.1}},
            "budget": {"tokens": 100},
        }
        self.config.write_text(yaml.safe_dump(rules | more))
        self.environ = {
            **os.environ,
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_address[1]}/hub/api",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/hermes/",
            "JUPYTERHUB_SERVICE_URL": self.url,
            "JUPYTERHUB_SERVICE_NAME": "hermes",
        }
        self.base = f"{self.url}/services/hermes/v1"
        self.start()

    def start(self):
        command = [sys.executable, "-m", "hermes_nb.cli", "proxy", "--config", str(self.config)]
        self.process = subprocess.Popen(
            command, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        assert "serving small" in self.process.stderr.readline()

    def ask(self, token="ada-token", path="v1/chat/completions", timeout=20, **more):
        """Return the status and the body."""
        body = json.dumps({"model": "small", "messages": [], **more}).encode()
        request = urllib.request.Request(
            f"{self.url}/services/hermes/{path}",
            body if path.endswith("completions") else None,
            {"Authorization": f"Bearer {token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def used(self, token="ada-token"):
        status, body = self.ask(token, "used")
        assert status == 200
        return json.loads(body)

    def settled(self):
        """Say whether nothing is under way."""
        ledger = sqlite3.connect(f"file:{self.config.with_name('spent.db')}?mode=ro", uri=True)
        with contextlib.closing(ledger):
            return ledger.execute("SELECT min(counted) FROM spent").fetchone()[0] == 1

    def stop(self, how=signal.SIGTERM):
        """End it; `said` is what it wrote to its log."""
        self.process.send_signal(how)
        self.process.wait(20)
        with self.process.stderr as log:
            self.said = log.read()


@pytest.fixture
def serving(tmp_path, hub):
    """Return a function that puts a proxy before a provider that gives these replies."""

    @contextlib.contextmanager
    def start(*replies, **rules):
        with Loopback(*replies) as server:
            proxy = Proxy(tmp_path, server.url, hub, **rules)
            proxy.server = server
            try:
                yield proxy
            finally:
                proxy.stop()

    return start

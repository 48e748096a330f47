"""A JupyterHub on 127.0.0.1 with a proxy for its model, and users who run cells in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
import yaml
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.e2e.harness import REPOSITORY
from tests.environments import cache, environment, node, node_modules
from tests.loopback import free_port

ADMIN = "tok-en-0123456789abcdef"
SECRET = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
SHARED = Path("/var/cache/hermes_nb/systems")
SYSTEMS = "/usr/bin/python3"
"""Every user can run this one; the one of these tests may lie in its user's home."""
PROXY = "configurable-http-proxy@5.3.0"
CONFIG = """
import os
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = {command!r}
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/secret"
c.JupyterHub.cleanup_servers = True
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "pw"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "{spawner}"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home/{{username}}"
c.Spawner.args = {arguments!r}
c.Spawner.environment = {environ!r}
c.JupyterHub.load_roles = [
    dict(name="user", scopes=["self", "access:services!service=hermes"]),
    dict(name="server", scopes=["users:activity!user", "access:servers!server",
                                "access:services!service=hermes"]),
    dict(name="test", services=["test"], scopes=["admin:users", "admin:servers", "access:servers",
         "list:users", "read:users:activity", "tokens"]),
    dict(name="culler", services=["culler"], scopes=["list:users", "read:users:activity",
         "read:servers", "delete:servers"]),
]
c.JupyterHub.services = [
    dict(name="test", api_token="{admin}"),
    dict(name="hermes", url="http://127.0.0.1:{serves}", oauth_no_confirm=True, display=False,
         command=["{python}", "-m", "hermes_nb.cli", "proxy", "--config", "{folder}/proxy.yaml"]),
    dict(name="culler", command=["{python}", "-m", "jupyterhub_idle_culler", "--timeout={cull}",
         "--cull-every=2"]),
]
"""


def installed() -> Path:
    """Return an environment with a hub and this hermes_nb, which other users can read too."""
    shared = os.geteuid() == 0 and usable(SYSTEMS)
    where = SHARED if shared else cache()
    interpreter = SYSTEMS if shared else sys.executable
    folder = environment("jupyterhub", "jupyterlab", where=where, interpreter=interpreter)
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    python = str(folder / "bin/python")
    # The environment has no pip of its own where uv has made it.
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    if uv := shutil.which("uv"):
        install = [uv, "pip", "install", "-q", "--python", python]
    again = ["--no-deps", "--force-reinstall", *map(str, wheels.glob("*.whl"))]
    subprocess.run([*install, *again], check=True, capture_output=True, timeout=120)
    if shared:
        subprocess.run(["chmod", "-R", "a+rX", str(where)], check=True)
    return folder


def usable(interpreter: str) -> bool:
    """Say whether an environment can be made of it."""
    asked = "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"
    with contextlib.suppress(OSError):
        done = subprocess.run([interpreter, "-c", asked], check=False, capture_output=True)
        return done.returncode == 0
    return False


class Hub:
    """A running hub. `rules` go into the proxy's configuration, `environ` to users' servers."""

    def __init__(self, place, folder, upstream, *, spawner="simple", cull=3600, environ=(), **more):
        self.place, self.folder = place, folder
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        python = str(place / "bin/python")
        # Straight to the service: users' kernels may go through the hub's proxy as well.
        self.model = f"{self.url}/services/hermes/v1"
        proxy = node_modules("hub-proxy", PROXY) / ".bin/configurable-http-proxy"
        arguments = more.pop("arguments", [])
        if os.geteuid() == 0 and spawner == "simple":
            arguments = [*arguments, "--allow-root"]
        given = {
            "HERMES_NB_BASE_URL": self.model,
            "HERMES_NB_KEY_ENV": "JUPYTERHUB_API_TOKEN",
            "HERMES_NB_MODEL": "small",
            "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
        }
        config = CONFIG.format(
            folder=folder,
            python=python,
            port=port,
            hub=free_port(),
            api=free_port(),
            serves=free_port(),
            command=[str(node() / "node"), str(proxy)],
            spawner=spawner,
            arguments=arguments,
            environ=given | dict(environ),
            admin=ADMIN,
            cull=cull,
        )
        (folder / "config.py").write_text(config + more.pop("config", ""))
        (folder / "key").write_text(SECRET)
        (folder / "key").chmod(0o600)
        rules = {
            "upstream": upstream,
            "key_file": str(folder / "key"),
            "ledger": str(folder / "spent.db"),
            "models": {"small": {}},
            "budget": {"tokens": 100},
        }
        (folder / "proxy.yaml").write_text(yaml.safe_dump(rules | more))
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [python, "-m", "jupyterhub", "-f", str(folder / "config.py")],
            cwd=folder,
            stdout=self.log,
            stderr=self.log,
            env={**clean(), "PATH": f"{place}/bin:{os.environ['PATH']}"},
        )
        self._ready()

    def _ready(self, seconds=60):
        end = time.monotonic() + seconds
        while True:
            try:
                self.api("GET", "/")
                self.api("GET", "/models", base="/services/hermes/v1")
            except OSError as problem:
                # Until the service's route is there, the hub itself answers, with 404.
                if getattr(problem, "code", None) in (401, 403):
                    return
                assert time.monotonic() < end and self.process.poll() is None, self.said()
                time.sleep(0.2)

    def said(self):
        return (self.folder / "log").read_text()[-4000:]

    def api(self, method, path, body=None, *, token=ADMIN, base="/hub/api"):
        """Ask the hub or what it serves; raise HTTPError."""
        request = urllib.request.Request(
            f"{self.url}{base}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"token {token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def join(self, name, seconds=90):
        """Return a user whose server runs, with a kernel."""
        self.api("POST", f"/users/{name}")
        self.api("POST", f"/users/{name}/server", {})
        end = time.monotonic() + seconds
        while not self.runs(name, ready=True):
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)
        return User(self, name)

    def runs(self, name, *, ready=False):
        """Say whether a user's server runs."""
        server = self.api("GET", f"/users/{name}")["servers"].get("")
        return bool(server and (server["ready"] or not ready))

    def close(self):
        self.process.terminate()
        self.process.wait(180)  # it stops the servers of twenty users first, in a benchmark
        self.log.close()


def clean():
    """Return the environment without what belongs to these tests."""
    ours = ("HERMES", "OPENAI", "PYTEST", "JUPYTER", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class User:
    """Somebody who is logged in, and the kernel that runs for them."""

    def __init__(self, hub, name):
        self.hub, self.name = hub, name
        self.token = hub.api("POST", f"/users/{name}/tokens", {})["token"]
        self.base = f"/user/{name}/api"
        self.kernel = self.ask("POST", "/kernels", {"name": "python3"})["id"]

    def ask(self, method, path, body=None):
        return self.hub.api(method, path, body, token=self.token, base=self.base)

    def run(self, code, *, seconds=90, live=False, meanwhile=None):
        """Run a cell and return all that it shows, errors too; `meanwhile` is called as it runs.

        Where it is `live`, as in a page, somebody could be asked.
        """
        return asyncio.run(self._run(code, seconds, live, meanwhile))

    async def _run(self, code, seconds, live, meanwhile):
        url = f"{self.hub.url}{self.base}/kernels/{self.kernel}/channels"
        request = HTTPRequest(
            url.replace("http", "ws", 1), headers={"Authorization": f"token {self.token}"}
        )
        connection = await websocket_connect(request)
        number, shown, looking = uuid.uuid4().hex, {}, None
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": live}
        header = {"msg_id": number, "msg_type": "execute_request", "session": number}
        header |= {"username": self.name, "version": "5.3", "date": ""}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        await connection.write_message(json.dumps({**message, "channel": "shell"}))
        if meanwhile is not None:
            looking = asyncio.create_task(asyncio.to_thread(meanwhile))
        async with asyncio.timeout(seconds):
            while True:
                got = json.loads(await connection.read_message())
                if got["parent_header"].get("msg_id") != number:
                    continue
                kind, content = got["msg_type"], got["content"]
                if kind == "stream":
                    shown[len(shown)] = content["text"]
                elif kind == "error":
                    shown[len(shown)] = f"{content['ename']}: {content['evalue']}"
                elif kind in ("display_data", "update_display_data", "execute_result"):
                    key = content.get("transient", {}).get("display_id", len(shown))
                    data = content["data"]
                    shown[key] = data.get("text/markdown") or data.get("text/plain", "")
                elif kind == "status" and content["execution_state"] == "idle":
                    break
        connection.close()
        while await connection.read_message() is not None:
            pass
        if looking is not None:
            await looking
        return "\n".join(shown.values())


def refused(ask):
    """Return the status that a request is refused with."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask()
    caught.value.close()
    return caught.value.code

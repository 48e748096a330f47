"""MCP servers that others wrote, the oldest and the newest SDK, and the conformance tests.

What comes by npm is kept in one folder of the user's cache.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest
import yaml
from hermes_nb import Hermes
from hermes_nb.core.events import MessageAdded
from hermes_nb.core.messages import Image
from hermes_nb.models.scripted import ScriptedModel, call

from tests.contract.safety.people import Person
from tests.e2e.harness import REPOSITORY, import_path
from tests.environments import SYSTEMS, environment, node, node_modules
from tests.patience import until
from tests.tools.mcp.conftest import started_once, written

PACKAGES = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/conformance@0.1.16",
    "conformance-2026@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
)
OTHERS = ("mcp-1.28", "mcp-2.3")
OLD, NEW = "2025-11-25", "2026-07-28"
CONFORMANCE = {OLD: "@modelcontextprotocol/conformance", NEW: "conformance-2026"}
SCENARIOS = {
    OLD: (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "auth/metadata-default",
        "auth/metadata-var1",
        "auth/metadata-var2",
        "auth/metadata-var3",
        "auth/basic-cimd",
        "auth/scope-from-www-authenticate",
        "auth/scope-from-scopes-supported",
        "auth/scope-omitted-when-undefined",
        "auth/scope-retry-limit",
        "auth/token-endpoint-auth-basic",
        "auth/token-endpoint-auth-post",
        "auth/token-endpoint-auth-none",
        "auth/pre-registration",
    ),
    NEW: (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
    ),
}
RUN = [
    *((OLD, scenario, system) for scenario in SCENARIOS[OLD] for system in ("", *OTHERS)),
    *((NEW, scenario, "mcp-2.3") for scenario in SCENARIOS[NEW]),
]
SERVED = {
    OLD: {
        "server-initialize",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-error",
        "tools-call-with-progress",
        "json-schema-2020-12",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    },
    NEW: {
        "server-stateless",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-error",
        "tools-call-with-progress",
        "json-schema-2020-12",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
        "caching",
        "http-header-validation",
        "http-custom-header-server-validation",
    },
}
"""The scenarios that our server passes."""
BESIDE = ("pytest", "pytest-timeout", "hypothesis", "pexpect")
"""What the tests of the contract need, in the environments of other versions."""


@pytest.fixture(scope="module")
def modules():
    """Yield the folder of the packages; Node is on the path meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(node()), prepend=os.pathsep)
        yield node_modules("mcp-node", *PACKAGES)


def told(home, *calls):
    """Return the results of calls in one conversation, whose user agrees to all of them."""
    model = ScriptedModel([*calls, "done"])
    with Hermes(model, home=home, cwd=home.parent, approve=Person("once")) as hermes:
        turn = hermes.ask("go")
    assert turn.text == "done", turn.error
    found = [event.message for event in turn.events if isinstance(event, MessageAdded)]
    return [message for message in found if message.role == "tool"], model


def test_three_servers_of_the_protocols_authors(modules, tmp_path):
    (tmp_path / "a.txt").write_text("alpha")
    home = tmp_path / "home"

    def server(name, *args, **env):
        return {
            "command": str(modules / ".bin" / f"mcp-server-{name}"),
            "args": list(args),
            "env": env,
        }

    servers = {
        "everything": server("everything", "stdio"),
        "filesystem": server("filesystem", str(tmp_path)),
        "memory": server("memory", MEMORY_FILE_PATH=str(tmp_path / "graph.jsonl")),
    }
    written(home, **servers)
    started_once(home, **servers)
    ada = {"name": "Ada", "entityType": "person", "observations": ["likes tables"]}
    results, model = told(
        home,
        call("mcp__everything__echo", message="a message that is long enough to be marked"),
        call("mcp__everything__get-tiny-image"),
        call("mcp__everything__trigger-long-running-operation", duration=1, steps=3),
        call("mcp__everything__trigger-sampling-request", prompt="x", maxTokens=10),
        "sampled answer",
        call("mcp__filesystem__read_text_file", path=str(tmp_path / "a.txt")),
        call("mcp__filesystem__read_text_file", path="/etc/passwd"),
        call("mcp__memory__create_entities", entities=[ada]),
        call("mcp__memory__search_nodes", query="tables"),
        call("mcp_resource", server="everything"),
    )
    echo, image, long, sampled, read, refused, _, found, resources = results
    assert "a message that is long enough" in echo.text
    assert any(isinstance(part, Image) for part in image.parts)
    assert "completed" in long.text and "sampled answer" in sampled.text
    assert "alpha" in read.text and refused.failed and "root:" not in refused.text
    assert "Ada" in found.text and "demo://" in resources.text
    offered = [tool.name for tool in model.requests[0].tools if tool.toolset == "mcp"]
    assert sum(name.startswith("mcp__filesystem__") for name in offered) == 14


def test_a_server_over_streamable_http(modules, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(modules / ".bin" / "mcp-server-everything")
    with subprocess.Popen(
        [program, "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:

        def answers():
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        try:
            assert until(answers, 60)
            home = written(tmp_path / "home", web={"url": f"http://127.0.0.1:{port}/mcp"})
            (found, echo), _ = told(
                home,
                call("mcp_search", query="echo"),
                call("mcp_call", tool="mcp__web__echo", arguments={"message": "hello"}),
            )
        finally:
            server.kill()
    assert "mcp__web__echo" in found.text and "hello" in echo.text


@pytest.mark.parametrize("system", OTHERS)
def test_with_other_versions_of_the_sdk(system):
    """Clients and servers of the contract, and the servers that misbehave, in that version."""
    python = environment(system, *BESIDE) / "bin" / "python"
    story, faults = "tests/tools/mcp/test_story.py", "tests/faults/test_mcp.py"
    logins = "tests/tools/mcp/test_login.py"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120"]
    ran = subprocess.run(
        [*command, story, logins, faults],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:]


def runner(modules, protocol, *words, timeout=150):
    """Run the conformance tests' program."""
    program = modules / CONFORMANCE[protocol] / "dist" / "index.js"
    env = {**os.environ, "PYTHONPATH": import_path()}
    command = ["node", program, *words]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=timeout
    )


@pytest.mark.parametrize(("protocol", "scenario", "system"), RUN)
def test_conformance_of_the_client(modules, tmp_path, protocol, scenario, system):
    python = environment(system, *BESIDE) / "bin" / "python" if system else sys.executable
    client = f"{python} {SYSTEMS / 'mcp_client.py'}"
    options = ["--command", client, "--scenario", scenario, "--timeout", "100000"]
    options += ["--spec-version", protocol] if protocol == NEW else []
    ran = runner(modules, protocol, "client", *options, "-o", str(tmp_path))
    assert ran.returncode == 0, ran.stdout[-4_000:]
    (file,) = tmp_path.rglob("checks.json")
    checks = [check["status"] for check in json.loads(file.read_text())]
    assert "SUCCESS" in checks and not {"FAILURE", "WARNING"} & set(checks)


@pytest.mark.parametrize("protocol", SCENARIOS)
def test_every_scenario_is_run_or_has_a_reason(modules, protocol):
    listed = runner(modules, protocol, "list").stdout.partition("Client scenarios")[2]
    listed = listed.partition("Authorization server scenarios")[0]
    found = set(re.findall(r"^ +- (\S+)", listed, re.MULTILINE))
    reasons = yaml.safe_load((SYSTEMS / "mcp-not-applicable.yml").read_text("utf-8"))
    assert set(SCENARIOS[protocol]) <= found
    rest = found.difference(*SCENARIOS.values())
    assert [each for each in rest if not each.startswith(tuple(reasons))] == []


@pytest.mark.parametrize(
    ("protocol", "system"), [*((OLD, system) for system in ("", *OTHERS)), (NEW, "mcp-2.3")]
)
def test_conformance_of_the_server(modules, tmp_path, protocol, system):
    """Every check passes, or has a reason why it does not apply."""
    python = environment(system, *BESIDE) / "bin" / "python" if system else sys.executable
    env = {**os.environ, "PYTHONPATH": import_path()}
    command = [python, SYSTEMS / "mcp_fixtures.py"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            options = ["--url", server.stdout.readline().strip(), "--suite", "all"]
            options += ["--spec-version", protocol] if protocol == NEW else []
            ran = runner(modules, protocol, "server", *options, "-o", str(tmp_path), timeout=400)
        finally:
            server.kill()
    reasons = tuple(yaml.safe_load((SYSTEMS / "mcp-server-not-applicable.yml").read_text("utf-8")))
    passed = set()
    for file in tmp_path.rglob("checks.json"):
        scenario = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.*", file.parent.name)[1]
        checks = json.loads(file.read_text())
        failed = [check["id"] for check in checks if check["status"] in ("FAILURE", "WARNING")]
        if scenario.startswith(reasons):
            continue
        assert [each for each in failed if not each.startswith(reasons)] == [], scenario
        assert "SUCCESS" in [check["status"] for check in checks], scenario
        passed.add(scenario)
    assert passed == SERVED[protocol], ran.stdout[-4_000:]

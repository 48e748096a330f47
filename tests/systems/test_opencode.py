"""opencode, which others wrote, works in a notebook that is open in JupyterLab."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.environments import node, node_modules
from tests.loopback import Loopback, calls, says

PACKAGES = ("opencode-ai@1.18.33",)
ASK = ".hermes-ask button"


@pytest.fixture(scope="module")
def python():
    return sys.executable


class Model(Loopback):
    """Plays the model of the turn; a request without tools asks for a title."""

    def take(self, exchange):
        return super().take(exchange) if exchange.json.get("tools") else says("trees")


def environment(folder, lab):
    """Return variables that keep opencode in its folder and off the network."""
    user = {"HOME": str(folder), "PWD": str(folder)}
    user |= {f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA", "STATE")}
    user |= {"XDG_CACHE_HOME": str(folder / "cache")}
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    user |= {f"OPENCODE_DISABLE_{name}": "1" for name in off}
    user |= {"JUPYTER_RUNTIME_DIR": str(lab.folder / "jupyter_runtime_dir")}
    user |= {"PATH": os.pathsep.join([str(node()), os.environ["PATH"]])}
    return user


def test_opencode_computes_and_adds_a_cell_as_the_user_allows(open_notebook, lab, tmp_path):
    notebook = open_notebook("oak = 1")
    notebook.run(1)
    notebook.kernel("%load_ext hermes_nb")
    notebook.kernel("%hermes serve")
    program = node_modules("opencode", *PACKAGES) / ".bin" / "opencode"
    compute = ("notebook_run_python", {"code": "total = oak + 41\ntotal"})
    insert = ("notebook_insert_cell", {"source": "total * 2"})
    refused = ("notebook_run_python", {"code": "total = 0"})
    look = ("notebook_list_variables", {})
    with Model(*(calls(each) for each in (look, compute, insert, refused)), says("all done")) as it:
        served = ["-m", "hermes_nb.cli", "mcp", "--notebook", str(lab.root / notebook.name)]
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "enabled_providers": ["loop"],
            "provider": {
                "loop": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": it.url, "apiKey": "x"},
                    "models": {
                        "m": {"tool_call": True, "limit": {"context": 32_000, "output": 2_000}}
                    },
                }
            },
            "mcp": {"notebook": {"type": "local", "command": [sys.executable, *served]}},
        }
        (tmp_path / "opencode.json").write_text(json.dumps(settings))
        user = environment(tmp_path, lab)
        with subprocess.Popen(
            [program, "run", "-m", "loop/m", "Add up the trees"],
            cwd=tmp_path, env={**os.environ, **user}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as agent:  # fmt: skip
            try:
                for answer in ("Run once", "Add", "Deny"):
                    notebook.page.click(f"{ASK}:has-text('{answer}')", timeout=100_000)
                notebook.page.wait_for_selector(".hermes-ask input:focus")
                notebook.page.keyboard.press("Enter")  # without a reason
                said, _ = agent.communicate(timeout=100)
            finally:
                agent.kill()
    assert "all done" in said
    variables, computed, inserted, denied = (
        message["content"] for message in it.bodies[-1]["messages"] if message["role"] == "tool"
    )
    assert "oak = 1" in variables and "42" in computed and "cell" in inserted
    assert "declined" in denied and notebook.value("total") == 42
    assert notebook.sources() == ["total * 2", "oak = 1"]  # below the cell that ran last
    assert "opencode" in str(notebook.evaluate("m.cells.map(c => c.metadata.hermes)"))
    notebook.kernel("%hermes undo")
    assert notebook.sources() == ["oak = 1"]

"""Installing, a key in the home, another machine: one question each, and then it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hermes_nb.safety.sandbox import level

from tests.safety.test_questions import run, work

__all__ = ["work"]

pytestmark = pytest.mark.slow
confined = pytest.mark.skipif(level().name != "bubblewrap", reason="needs bubblewrap")
PACKAGE = "brandnewpackage"
ASK = f"""
import json, sys
sys.path.append({os.fspath(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.safety.test_questions import run
shown, asked = run(Path(sys.argv[1]), *sys.argv[2:])
print(json.dumps([shown, [each.why for each in asked]]))
"""
CONDA = """#!/bin/sh
# What conda does, as far as a sandbox is concerned: it fetches into the cache, and from there.
set -e
python - "$INDEX" <<'END'
import pathlib, sys, urllib.request
prefix = pathlib.Path(sys.prefix)
page = urllib.request.urlopen(sys.argv[1]).read()
(prefix / "pkgs").mkdir(exist_ok=True)
(prefix / "pkgs" / "page.conda").write_bytes(page)
(prefix / "conda-meta" / "page.json").write_text("{}")
END
echo installed
"""
WITH_A_KEY = """
import json, pathlib, sys, urllib.request
path = pathlib.Path.home() / {path!r}
if not path.exists() and "gently" in sys.argv:
    sys.exit(f"Could not find {{path.name}}. Make sure it's located in {{path.parent}}.")
key = json.loads(path.read_text())["key"]
urllib.request.urlopen({url!r})
print("came with", len(key), "characters")
"""


@pytest.fixture
def index(tmp_path):
    """A package index on this machine that has one package, which nobody has."""
    folder = tmp_path / "index" / PACKAGE
    folder.mkdir(parents=True)
    name = f"{PACKAGE}-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{PACKAGE}.py", "said = 'new here'\n")
        about = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n"
        wheel.writestr(f"{name}.dist-info/METADATA", about)
        kind = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}.dist-info/WHEEL", kind)
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    handler = partial(SimpleHTTPRequestHandler, directory=folder.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def python(tmp_path):
    """An environment of its own, whose Python plays the kernel; it borrows what is installed."""
    place = tmp_path / "kernel"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    borrowed = [each for each in sys.path if each.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    return place / "bin" / "python"


def ask(python, work, index, *commands):
    """Run commands by an agent in that Python; return what they gave and why they were asked."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [python, "-c", ASK, work, *commands],
        env={**os.environ, "PATH": path, "INDEX": index},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    shown, why = json.loads(done.stdout.splitlines()[-1])
    return shown, why


@confined
def test_a_new_package_is_installed_after_one_question(work, python, index):
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    install = f"pip install --index-url {index} {PACKAGE}"
    use = f"python -c 'import {PACKAGE} as new; print(new.said)'"
    shown, why = ask(python, work, index, use, install, use)
    assert "No module named" in shown[0] and "new here\n[exit 0" in shown[2]
    assert (site / f"{PACKAGE}.py").exists()
    (why,) = why
    assert "this Python's packages and their cache" in why
    assert "uses the network" in why


@confined
def test_conda_installs_after_one_question(work, python, index):
    (python.parents[1] / "conda-meta").mkdir()
    conda = python.with_name("conda")
    conda.write_text(CONDA.replace("$INDEX", index), encoding="utf-8")
    conda.chmod(0o755)
    shown, (why,) = ask(python, work, index, "conda install -y page")
    assert "installed\n[exit 0" in shown[0]
    assert (python.parents[1] / "conda-meta" / "page.json").exists()
    assert "this Python's packages and their cache" in why and "outside" not in why


PROGRAMS = ["gh pr list", f"{sys.executable} train.py", f"{sys.executable} train.py gently"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_who_reads_a_key_in_the_home_is_asked_about_once(
    work, index, tmp_path, monkeypatch, program
):
    path = ".config/gh/hosts.yml" if program.startswith("gh") else ".kaggle/kaggle.json"
    home = tmp_path / "person"
    (home / path).parent.mkdir(parents=True)
    (home / path).write_text('{"key": "0123456789"}', encoding="utf-8")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    script = WITH_A_KEY.format(path=path, url=index)
    (work / "train.py").write_text(script, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    (tmp_path / "bin" / "gh").chmod(0o755)
    shown, (question,) = run(work, program)
    assert "outside of the sandbox" in question.why
    assert "came with 10 characters\n[exit 0" in shown[0]
    shown, (question,) = run(work, program, answer="deny")
    assert "came with" not in shown[0]

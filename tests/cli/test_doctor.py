"""`jupyter hermes doctor`: what it finds, what it says to do, and what it never says."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import hermes_nb
import pytest
from hermes_nb.cli.main import main
from hermes_nb.notebook.commands.doctor import home as home_checked
from hermes_nb.notebook.commands.doctor import versions

from tests.cli.conftest import KEY
from tests.loopback import Loopback, Reply

OURS = Path(hermes_nb.__file__).parent / "notebook" / "labextension"


@pytest.fixture(autouse=True)
def _a_machine_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_LOCAL_SERVERS", "no")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def doctor(capsys):
    """Return a function that returns the exit code and the findings by name."""

    def run(*, offline=True):
        code = main(["doctor", "--json", *(["--offline"] if offline else [])])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] == (code == 0)
        return code, {each["name"]: (each["state"], each["text"]) for each in report["checks"]}

    return run


def test_all_is_well(doctor, monkeypatch, home):
    monkeypatch.setenv("HERMES_NB_MODEL", "some-model")
    monkeypatch.setenv("HERMES_NB_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HERMES_NB_API_KEY", KEY)
    code, found = doctor()
    assert code == 0, found
    assert found["model"] == ("ok", "some-model at http://127.0.0.1:9/v1")
    assert found["key"] == ("ok", "one is set (HERMES_NB_API_KEY); it is never shown")
    assert KEY not in str(found)
    assert f"hermes_nb {hermes_nb.__version__}" in found["versions"][1]
    assert found["labextension"][0] == "ok"
    assert found["kernel"][0] == "ok"
    assert "created by the first turn" in found["home"][1]
    assert not home.exists()


def test_a_key_is_tried(doctor, monkeypatch):
    listing = Reply([json.dumps({"data": [{"id": "some-model"}]}).encode()], length=True)
    with Loopback(listing=listing) as server:
        monkeypatch.setenv("HERMES_NB_MODEL", "some-model")
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_API_KEY", KEY)
        code, found = doctor(offline=False)
        assert (code, found["answer"][0]) == (0, "ok")
        assert "accepts the key, and has some-model" in found["answer"][1]
        refused = json.dumps({"error": {"message": f"wrong key {KEY}"}}).encode()
        server.listing = Reply([refused], status=401, length=True)
        code, found = doctor(offline=False)
        assert (code, found["answer"][0]) == (1, "problem")
        assert "copy the key again" in found["answer"][1]
        assert KEY not in str(found)
        assert "answer" not in doctor()[1]


def test_a_replay_looks_for_no_model(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    assert doctor()[1]["model"][0] == "ok"
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "none.jsonl"))
    code, found = doctor()
    assert (code, found["model"][0]) == (1, "problem")
    assert "there is no cassette" in found["model"][1]


def test_a_broken_configuration_is_told_with_its_line(doctor, home, capsys):
    home.mkdir()
    (home / "config.yaml").write_text("hermes_nb:\n  approve: ask\n  model: [1\nx: 2\n")
    code, found = doctor()
    assert (code, found["settings"][0]) == (1, "problem")
    assert "line 4" in found["settings"][1]
    assert "model" not in found
    assert main(["doctor"]) == 1
    assert "settings           ✗ " in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write all")
def test_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for anybody but root
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    from hermes_nb.agent.settings.config import load_settings

    finding = home_checked(load_settings())
    assert finding.state == "problem"
    assert "set HERMES_HOME" in finding.text


def test_secrets_that_others_can_read(doctor, home):
    home.mkdir()
    secrets = home / ".env"
    secrets.write_text(f"OPENAI_API_KEY={KEY}\nHERMES_NB_MODEL=m\n")
    secrets.chmod(0o644)
    code, found = doctor()
    assert (code, found["home"][0]) == (1, "problem")
    secrets.chmod(stat.S_IRUSR | stat.S_IWUSR)
    code, found = doctor()
    assert (code, found["key"][0]) == (0, "ok")
    assert KEY not in str(found)


def test_labextensions(doctor, monkeypatch, tmp_path):
    data = tmp_path / "data"
    monkeypatch.setattr(
        "jupyter_core.paths.jupyter_path", lambda *each: [str(data.joinpath(*each))]
    )
    assert doctor()[1]["labextension"][0] == "note"
    folder = data / "labextensions" / "hermes-nb"
    shutil.copytree(OURS, folder)
    assert doctor()[1]["labextension"][0] == "ok"
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    for disabled in ({"hermes-nb": True}, ["hermes-nb"]):
        page.write_text(json.dumps({"disabledExtensions": disabled}))
        assert "is disabled in" in doctor()[1]["labextension"][1]
    page.write_text("{")
    package = json.loads((folder / "package.json").read_text())
    (folder / "package.json").write_text(json.dumps({**package, "version": "0.0.1"}))
    assert "is of version 0.0.1" in doctor()[1]["labextension"][1]
    (folder / "package.json").write_text("{}")
    assert "is damaged" in doctor()[1]["labextension"][1]


def test_requirements_that_are_not_met(monkeypatch):
    wanted = ["ipython<1", "no-such-package>=2", "xllamacpp<1 ; extra == 'local'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    finding = versions()
    assert finding.state == "problem"
    assert "no-such-package is missing" in finding.text
    assert "not <1" in finding.text
    assert "xllamacpp" not in finding.text


def test_whether_kernels_are_enabled(doctor, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert doctor()[1]["without %load_ext"][0] == "note"


def test_the_store_is_looked_at(doctor, home):
    home.mkdir()
    (home / "notebook.db").write_bytes(b"no database" * 1000)
    assert doctor()[1]["sessions"][0] in ("note", "problem")

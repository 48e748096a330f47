"""Skills that an administrator signs for all: what is offered, what is not, what is revoked.

Keys and signatures are real ones; who looks is a library as a kernel has it, while files change.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hermes_nb import Hermes
from hermes_nb.cli.main import main
from hermes_nb.extras.hub.signed import INDEX, read_index
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.skills.document import SkillError
from hypothesis import strategies as st

from tests.skills.support import HARM, put, text

SCRIPT = {"scripts/plot.py": "print('plot')\n", "assets/logo.png": b"\x89PNG\0"}


def pem(path):
    """Write a new key as `openssl genpkey -algorithm ed25519` does."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def public(key):
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


@pytest.fixture
def shared(tmp_path, administered, monkeypatch):
    """Return a directory with two signed skills, shared by a policy, and its key beside it."""
    directory, key = tmp_path / "shared", tmp_path / "key.pem"
    put(directory, "plot-table", files=SCRIPT)
    put(directory, "clean-names", text("clean-names", "Cleans column names."), category="tables")
    administered(shared_skills=str(directory), skills_key=public(pem(key)))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert cli("sign") == 0
    return directory


def cli(action, *words, key="key.pem"):
    given = [] if action == "verify" else ["--key", f"../{key}"]
    yes = ["--yes"] if action == "sign" else []
    return main(["skills", action, *words, *given, *yes])


class Kernel:
    """A session that goes on while the administrator does things."""

    def __init__(self, *calls):
        self.model = ScriptedModel([step for each in calls for step in (each, "done")])
        self.hermes = Hermes(self.model)

    def ask(self):
        turn = self.hermes.ask("go")
        return "\n".join(m.text for m in turn.messages if m.role == "tool")


def view(name="plot-table", **more):
    return call("skill_view", name=name, **more)


def test_users_see_what_was_signed_without_a_question(shared):
    kernel = Kernel(view(), view(file_path="scripts/plot.py"), view("clean-names"))
    with kernel.hermes:
        shown = kernel.ask()
        assert "Draw the axes" in shown
        assert "other people wrote" not in shown
        assert "print('plot')" in kernel.ask()
        assert "Load the table" in kernel.ask()
        assert "- clean-names: Cleans column names." in kernel.hermes.system_prompt
    index = json.loads((shared / INDEX).read_text())["index"]
    assert list(index["files"]) == sorted(index["files"])
    assert "tables/clean-names/SKILL.md" in index["files"]


def alter(directory):
    (directory / "plot-table" / "SKILL.md").write_text(text("plot-table", "Draws another."))


def alter_a_script(directory):
    (directory / "plot-table" / "scripts" / "plot.py").write_text("print('evil')\n")


def alter_what_is_binary(directory):
    (directory / "plot-table" / "assets" / "logo.png").write_bytes(b"\x89PNG\1")


def add_a_file(directory):
    (directory / "plot-table" / "scripts" / "more.py").write_text("print('more')\n")


def add_a_hidden_file(directory):
    (directory / "plot-table" / ".env").write_text("A=1\n")


def take_a_file(directory):
    (directory / "plot-table" / "scripts" / "plot.py").unlink()


def put_a_link(directory):
    path = directory / "plot-table" / "scripts" / "plot.py"
    path.unlink()
    path.symlink_to("/etc/hostname")


CHANGES = [
    alter, alter_a_script, alter_what_is_binary, add_a_file, add_a_hidden_file, take_a_file,
    put_a_link,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_it_was_signed_is_not_offered(shared, capsys, change):
    kernel = Kernel(view(), view(), call("skills_list"))
    with kernel.hermes:
        assert "Draw the axes" in kernel.ask()
        change(shared)
        refused = kernel.ask()
        assert "not loaded" in refused
        assert "signed" in refused
        listed = kernel.ask()
        assert "plot-table" not in listed
        assert "clean-names" in listed
    with Kernel().hermes as fresh:
        assert "plot-table" not in fresh.system_prompt
    capsys.readouterr()
    assert cli("verify") == 1
    told = capsys.readouterr()
    assert "plot-table" in told.out + told.err


def test_a_skill_that_was_put_beside_them_is_not_offered(shared, capsys):
    put(shared, "evil", text("evil", "Does everything better."))
    with (kernel := Kernel(view("evil"))).hermes:
        assert "not in the signed index" in kernel.ask()
        assert "evil" not in kernel.hermes.system_prompt
    assert cli("verify") == 1
    assert "evil/SKILL.md is not in the index" in capsys.readouterr().out


def forge(directory):
    document = json.loads((directory / INDEX).read_text())
    document["index"]["files"]["plot-table/SKILL.md"] = "0" * 64
    (directory / INDEX).write_text(json.dumps(document))


def no_signature(directory):
    document = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps(document["index"]))


def no_index(directory):
    (directory / INDEX).unlink()


def damage(directory):
    (directory / INDEX).write_bytes(b"\0{")


def sign_with_another_key(directory):
    pem(directory.parent / "other.pem")
    (directory / INDEX).unlink()
    assert cli("sign", key="other.pem") == 0


FORGED = [forge, no_signature, no_index, damage, sign_with_another_key]


@pytest.mark.parametrize("change", FORGED)
def test_without_a_good_signature_there_is_none(shared, change):
    with (kernel := Kernel(view(), view())).hermes:
        assert "Draw the axes" in kernel.ask()
        change(shared)
        assert "not loaded" in kernel.ask()


PARTS = st.sampled_from(["index", "files", "number", "revoked", "signature", "a/SKILL.md", "QQ=="])
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.floats() | PARTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PARTS, inner, max_size=5),
    max_leaves=10,
)


@hypothesis.given(DOCUMENTS, st.text(max_size=8))
def test_whatever_an_index_holds_it_is_refused_unless_signed(document, key):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, INDEX)
        path.write_text(json.dumps(document))
        with pytest.raises(SkillError):
            read_index(path, key)


def test_an_index_is_not_replaced_by_one_before_it(shared):
    before = (shared / INDEX).read_bytes()
    with (kernel := Kernel(view(), view())).hermes:
        assert cli("revoke", "plot-table", "--why", "it loses rows") == 0
        assert "it loses rows" in kernel.ask()
        (shared / INDEX).write_bytes(before)
        assert "older" in kernel.ask()


def test_a_revoked_skill_is_gone_from_a_session_that_goes_on(shared, home):
    with (kernel := Kernel(view(), view(), call("skills_list"), view())).hermes:
        assert "Draw the axes" in kernel.ask()
        prefix = kernel.hermes.system_prompt
        assert cli("revoke", "plot-table", "--why", "it loses rows") == 0
        refused = kernel.ask()
        assert "revoked" in refused
        assert "it loses rows" in refused
        assert "plot-table" not in kernel.ask()
        assert kernel.hermes.system_prompt == prefix
        assert cli("restore", "plot-table") == 0
        assert "Draw the axes" in kernel.ask()


def test_nor_does_a_copy_of_the_users_bring_it_back(shared, home):
    patch = call("skill_manage", action="patch", name="plot-table",
                 old_string="Draw the axes", new_string="Draw all axes")  # fmt: skip
    with (kernel := Kernel(patch, view(), view())).hermes:
        assert "Draw all axes" in kernel.ask()
        assert "Draw all axes" in kernel.ask()
        assert cli("revoke", "plot-table") == 0
        assert "revoked" in kernel.ask()


@pytest.mark.parametrize("by", ["drawing", "draw-it"])
def test_a_skill_is_revoked_by_its_own_name_and_its_folders(shared, home, by):
    put(shared, "drawing", text("draw-it", "Draws."))
    assert cli("sign") == 0
    patch = call("skill_manage", action="patch", name="draw-it",
                 old_string="Draw the axes", new_string="Draw all axes")  # fmt: skip
    with (kernel := Kernel(patch, view("draw-it"), view("draw-it"), view("draw-it"))).hermes:
        kernel.ask()
        assert "Draw all axes" in kernel.ask()
        assert cli("revoke", by, "--why", "it loses rows") == 0
        assert "it loses rows" in kernel.ask()
        assert cli("restore", by) == 0
        assert "Draw all axes" in kernel.ask()


def test_what_the_scan_did_not_look_at_is_said(shared, capsys, monkeypatch):
    monkeypatch.setattr("hermes_nb.skills.sources.LARGEST", 100)
    put(shared, "helper", HARM)
    assert cli("sign") == 0
    assert "not everything was scanned: it has more than" in capsys.readouterr().out


def test_no_link_leads_what_is_kept_elsewhere(shared, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(shared / ".signed")
    (shared / ".signed").symlink_to(elsewhere)
    assert cli("sign") == 1
    assert "link" in capsys.readouterr().err and not list(elsewhere.iterdir())


def test_the_scan_still_warns(shared, capsys):
    put(shared, "helper", HARM)
    assert cli("sign") == 0
    assert "helper looks dangerous" in capsys.readouterr().out
    with (kernel := Kernel(view("helper"))).hermes:
        shown = kernel.ask()
    assert "reverse-shell" in shown
    assert "not loaded" not in shown


def test_what_is_new_is_shown_before_it_is_signed(shared, capsys):
    alter(shared)
    (shared / "plot-table" / "scripts" / "plot.py").unlink()
    capsys.readouterr()
    directory = str(shared)
    assert main(["skills", "sign", directory, "--key", str(shared.parent / "key.pem")]) == 2
    told = capsys.readouterr()
    assert "-description: Draws a chart from a table." in told.out
    assert "+description: Draws another." in told.out
    assert "-print('plot')" in told.out
    assert "not a terminal: pass --yes to sign" in told.err
    assert cli("verify") == 1
    assert cli("sign") == 0
    assert cli("verify") == 0


def test_what_was_kept_of_the_last_signing_hides_no_change(shared, capsys):
    alter(shared)
    alter(shared / ".signed")
    capsys.readouterr()
    assert cli("sign") == 0
    assert "+description: Draws another." in capsys.readouterr().out


def test_what_is_scanned_is_what_is_signed(shared, monkeypatch):
    place = put(shared, "helper", HARM) / "SKILL.md"

    class Swapping(io.StringIO):
        def write(self, told):
            place.write_text(text("helper", "Helps."))
            return super().write(told)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out := Swapping())
        assert cli("sign") == 0
    assert "helper looks dangerous" in out.getvalue()
    assert cli("verify") == 1, "what stands there now was not signed"


def test_a_link_is_not_signed_and_a_wrong_key_says_so(shared, capsys, tmp_path):
    put_a_link(shared)
    assert cli("sign") == 1
    assert "link" in capsys.readouterr().err
    (tmp_path / "no.pem").write_text("x")
    assert cli("sign", key="no.pem") == 1
    assert "openssl genpkey" in capsys.readouterr().err
    pem(tmp_path / "other.pem")
    assert cli("sign", key="other.pem") == 1
    assert "not signed by" in capsys.readouterr().err
    assert cli("revoke", "nothing") == 1


def test_the_key_of_openssl_is_taken(shared, tmp_path):
    made = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(tmp_path / "ssl.pem")]
    subprocess.run(made, check=True, capture_output=True)
    (shared / INDEX).unlink()
    assert cli("sign", key="ssl.pem") == 0

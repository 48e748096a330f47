"""The policy with Unix users of their own: what root owns holds, whatever a user tries.

And what it does not hold against: a user who patches the code, whom only what is outside of the
kernel stops.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pexpect
import pytest
from hermes_nb.safety import administrator

from tests.contract.users import ALICE, BOB, Prefix, as_user
from tests.loopback import Loopback, calls, says

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of root's and of others")

TRY = """
import json, os, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.safety import administrator

file = Path(sys.argv[1])
mine = Path.home() / "etc" / "jupyter" / "hermes_policy.json"
mine.parent.mkdir(parents=True, exist_ok=True)
mine.write_text('{"HermesPolicy": {"modes": {"all": "force-on"}}}')
told = {"file": administrator.policy().file, "touched": []}
for name, attempt in {
    "write": lambda: file.write_text("{}"),
    "remove": file.unlink,
    "rename": lambda: file.parent.rename(file.parent.with_name("gone")),
    "replace": lambda: os.replace(mine, file),
    "chmod": lambda: file.chmod(0o777),
    "beside": lambda: (file.parent / "other").write_text(""),
}.items():
    try:
        attempt()
        told["touched"].append(name)
    except OSError:
        pass
try:
    Hermes(ScriptedModel([]), approve="all")
    told["script"] = "not refused"
except ConfigError as error:
    told["script"] = str(error)
model = ScriptedModel([call("write_file", path="made.txt", content="x"), "done"])
with Hermes(model) as hermes:
    hermes.ask("go")
told["made"] = Path("made.txt").exists()
print(json.dumps(told))
"""

KERNEL = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=60)
for cell in sys.argv[1:]:
    client.execute_interactive(cell, timeout=60, output_hook=lambda m: print(m["content"]))
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@pytest.fixture(scope="module")
def prefix():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield Prefix(folder)


def variables(mine):
    """Return every variable that leads somebody's configuration elsewhere."""
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_PATH", "VIRTUAL_ENV")
    return dict.fromkeys(names, str(mine)) | {
        "JUPYTER_PREFER_ENV_PATH": "1",
        "HERMES_NB_APPROVE": "all",
        "HERMES_NB_CEILING": "all",
        "CONDA_PREFIX": str(mine),
    }


def as_it_is(prefix, home):
    return {}


def by_a_link_to_the_package(prefix, home):
    (home / "site").mkdir()
    (home / "site" / "hermes_nb").symlink_to(prefix.site / "hermes_nb")
    return {"PYTHONPATH": f"{home}/site"}


def by_links_to_its_files(prefix, home):
    for file in (prefix.site / "hermes_nb").rglob("*.*"):
        own = home / "files" / file.relative_to(prefix.site)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.symlink_to(file)
    return {"PYTHONPATH": f"{home}/files"}


def by_an_environment_of_their_own(prefix, home):
    venv = home / "venv"
    subprocess.run([prefix.python, "-m", "venv", "--without-pip", venv], check=True)
    code = f"import sys; sys.prefix = sys.exec_prefix = {str(venv)!r}"
    (home / "own").mkdir()
    (home / "own" / "usercustomize.py").write_text(code)
    return {"PYTHONPATH": f"{home}/own", "PYTHONUSERBASE": str(venv)}


WAYS = [as_it_is, by_a_link_to_the_package, by_links_to_its_files, by_an_environment_of_their_own]


@pytest.mark.parametrize(("user", "way"), [(BOB, as_it_is), *((ALICE, way) for way in WAYS)])
def test_nothing_of_a_users_takes_it_away(prefix, user, way):
    prefix.settle(modes={"*": "force-off", "ask": "user-choice"})
    home = prefix.home(user)
    (home / ".hermes").mkdir(exist_ok=True)
    (home / ".hermes" / "config.yaml").write_text("hermes_nb: {approve: all}\n")
    (home / ".hermes" / ".env").write_text("HERMES_NB_APPROVE=all\n")
    os.chown(home / ".hermes", user, user)
    own = variables(home / "etc") | way(prefix, home)
    if "PYTHONPATH" in own:
        own["PYTHONPATH"] += os.pathsep + prefix.environment(user)["PYTHONPATH"]
    found = prefix.run(user, "-c", TRY, str(prefix.policy), **own)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["file"] == str(prefix.policy)
    assert told["touched"] == []
    assert str(prefix.policy) in told["script"]
    assert told["made"] is False


@pytest.mark.kernel
def test_nor_does_a_cell_of_theirs_or_the_command_line(prefix):
    prefix.settle(modes={"all": "force-off", "edits": "force-off"})
    writes = calls(("write_file", {"path": "made.txt", "content": "x"}))
    home = prefix.home(ALICE)
    with Loopback(writes, says("done")) as server:
        asked = variables(home / "etc") | {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "m"}
        cells = (
            "%load_ext hermes_nb\nimport os\nos.environ['HERMES_NB_APPROVE'] = 'all'",
            "%%hermes --approve all\ngo",
            "%hermes approve all",
            "%config HermesMagics.approve = 'all'",
            "%hermes go",
        )
        found = prefix.run(ALICE, "-c", KERNEL, *cells, **asked)
        assert found.stdout.count("modes: all") >= 2, found.stdout + found.stderr
        assert "write_file" in found.stdout
        run = prefix.run(ALICE, "-m", "hermes_nb.cli", "run", "--approve", "all", "go", **asked)
        assert run.returncode == 1
        assert str(prefix.policy) in run.stderr
    assert not (home / "made.txt").exists()


def test_nor_a_chat_in_a_terminal_or_a_job_by_the_clock(prefix):
    prefix.settle(modes={"all": "force-off"})
    words = (prefix.python, "-m", "hermes_nb.cli", "chat", "--approve", "all")
    chat = pexpect.spawn(
        "setpriv", [*as_user(BOB), *words], env=prefix.environment(BOB), encoding="utf-8",
        cwd=str(prefix.home(BOB)), timeout=60, dimensions=(24, 300),
    )  # fmt: skip
    told = chat.read()
    chat.close()
    assert (chat.exitstatus, "modes: all" in told) == (1, True), told
    job = ("jobs", "0 7 * * *", "hello", "--approve", "all", "--yes")
    found = prefix.run(BOB, "-m", "hermes_nb.cli", *job)
    assert (found.returncode, "modes: all" in found.stderr) == (1, True)


def test_who_patches_the_code_is_stopped_by_the_system_alone(prefix):
    """The mode is raised; the folder is root's, the key is not in the kernel: both stay so."""
    prefix.settle(modes={"all": "force-off"})
    roots = prefix.folder / "roots"
    roots.mkdir()
    made = [("write_file", {"path": path, "content": "x"}) for path in (f"{roots}/a", "patched")]
    with Loopback(calls(*made), says("done")) as server:
        patch = (
            "from hermes_nb.safety import administrator\nadministrator.PLACES = ()\n"
            "from hermes_nb import Hermes\n"
            f"with Hermes('m', base_url={server.url!r}, approve='all') as hermes:\n"
            "    print([m.text for m in hermes.ask('go').messages if m.role == 'tool'])"
        )
        found = prefix.run(ALICE, "-c", patch)
    assert "created patched" in found.stdout, found.stdout + found.stderr
    assert (prefix.home(ALICE) / "patched").exists()
    assert not (roots / "a").exists()


def _other_owner(file):
    os.chown(file, ALICE, ALICE)


def _writable(file):
    file.chmod(0o666)


def _others_folder(file):
    os.chown(file.parent, ALICE, ALICE)


def _open_folder(file):
    file.parent.parent.chmod(0o777)


def _link_through_a_users_folder(file):
    users = file.parents[2] / "users"
    users.mkdir()
    file.parent.rename(users / "jupyter")
    file.parent.symlink_to(users / "jupyter")
    os.chown(users, ALICE, ALICE)


LOOSE = [_other_owner, _writable, _others_folder, _open_folder, _link_through_a_users_folder]


@as_root
@pytest.mark.parametrize("loosen", LOOSE)
def test_a_file_that_a_user_could_change_stops_everything(open_path, monkeypatch, loosen):
    folder = open_path / "etc" / "jupyter"
    folder.mkdir(parents=True)
    file = folder / administrator.FILE
    file.write_text('{"HermesPolicy": {}}')
    monkeypatch.setattr(administrator, "PLACES", (folder,))
    assert administrator.policy().file == str(file)
    administrator._known.clear()
    loosen(file)
    with pytest.raises(administrator.ConfigError, match=r"root"):
        administrator.policy()


PREFIXED = """
import sys
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel
sys.prefix = sys.argv[1]  # as in an environment of the user's that has this package on its path
with Hermes(ScriptedModel([])) as hermes:
    print("mine" in hermes.system_prompt)
"""


@as_root
def test_skills_in_an_environment_of_the_users_are_not_the_administrators(prefix):
    home = prefix.home(BOB)
    folder = home / "venv" / "share" / "hermes_nb" / "skills" / "mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: Mine.\n---\nDo it.\n")
    for owner, seen in ((BOB, "False"), (0, "True")):
        prefix.settle(skills={"*": "force-off", "admin": "user-choice"})
        if not owner:
            folder = prefix.folder / "venv"
            (home / "venv").rename(folder)
        found = prefix.run(BOB, "-c", PREFIXED, str(home / "venv" if owner else folder))
        assert found.stdout.strip() == seen, found.stderr


@as_root
def test_a_policy_of_the_users_own_environment_is_none(prefix):
    prefix.settle(modes="force-off")
    os.chown(prefix.policy.parent, ALICE, ALICE)
    code = "from hermes_nb.safety.administrator import policy; policy()"
    found = prefix.run(ALICE, "-c", code)
    assert "does not belong to root" in found.stderr

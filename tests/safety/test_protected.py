"""Secrets by every name, what runs later, what children inherit: by the tools and the lists."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.safety import protected
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.protected import secret_name, survey, why_later, why_protected, why_secret
from hermes_nb.tools.files import files

from tests.tools.support import run

SECRET = """.env x/.env.prod prod.env secrets.toml credentials.json service_account-1.json token
terraform.tfstate kernel-abc.json .databrickscfg .kaggle/kaggle.json .dbt/profiles.yml auth.json
.env.local sub/.ENV .envrc .ssh/config .ssh/id_ed25519 id_rsa .aws/credentials .bash_history
.config/gcloud/x.json .config/gh/hosts.yml .docker/config.json .netrc .pgpass .npmrc .pypirc
.git-credentials .kube/config .gnupg/x server.pem private.key x.p12 x.kdbx .hermes/config.yaml
.local/share/jupyter/runtime/kernel-1.json .streamlit/secrets.toml"""
OPEN = """.env.example .env.sample .gitignore a.py keys.py AGENTS.md .config/app/x.toml
.github/workflows/x.yml .vscode/settings.json .env.local.sample secrets.py credentials.md
tokenizer.json tokens.txt keys.csv model.pth config.yaml secretary.csv environment.yml"""
LATER = """AGENTS.md sub/CLAUDE.md .cursorrules .hermes.md .github/copilot-instructions.md
.github/workflows/ci.yml .gitlab-ci.yml .github/agents/x.md
.github/hooks/x.json sitecustomize/__init__.py usercustomize/__init__.py
.vscode/settings.json .idea/workspace.xml .devcontainer/x
conftest.py tests/conftest.py sitecustomize.py x.pth .venv/lib/python3.11/site-packages/x.pth
.venv/bin/activate numpy.py json/__init__.py sub/random.py .git/hooks/pre-commit .bashrc
numpy.cpython-311-x86_64-linux-gnu.so .pre-commit-config.yaml skills/x/SKILL.md .envrc
x.code-workspace .mcp.json .Rprofile sub/.pdbrc matplotlibrc .clinerules/a.md .gitmodules
../hermes-home/memories/MEMORY.md"""
RUNS = """.git/hooks/pre-commit .git/config .husky/pre-push .hg/hgrc .jj/repo/config.toml
.jupyter/jupyter_lab_config.py
.ipython/profile_default/startup/x.py .local/share/jupyter/kernels/x/kernel.json .mcp.json
.cursor/mcp.json .vscode/mcp.json .claude/settings.json jupyter_server_config.py
ipython_kernel_config.json .bashrc .profile .zshenv .gitconfig sitecustomize.py
hermes-home/SOUL.md hermes-home/memories/MEMORY.md .hermes/skills/x/SKILL.md .GIT/config"""
NOT_LATER = """Makefile analysis.py data/x.csv README.md test.py tests/test_x.py notebook.ipynb
pyproject.toml pkg/random.py json/notes.txt hooks/x.py workflows/x.yml settings.json"""


@pytest.fixture
def use(tmp_path):
    tools = files(tmp_path)
    return lambda name, **arguments: run(tools.get(name), **arguments)


@pytest.mark.parametrize("name", SECRET.split())
def test_secrets_by_name(name):
    assert secret_name(PurePosixPath(name).parts)
    assert why_secret(PurePosixPath("/w") / name)
    assert why_protected(Path(name), Path("/w"), write=False)
    assert why_protected(Path(name), Path("/w"), write=True)


@pytest.mark.parametrize("name", OPEN.split())
def test_what_is_no_secret(name):
    assert secret_name(PurePosixPath(name).parts) == ""
    assert why_protected(Path(name), Path("/w"), write=True) == ""


@pytest.mark.parametrize("path", RUNS.split())
def test_what_runs_may_be_read_but_not_written(tmp_path, path):
    assert why_protected(Path(path), tmp_path, write=False) == ""
    assert why_protected(Path(path), tmp_path, write=True)


def test_the_configuration_of_the_home_and_hashes_are_secrets(tmp_path):
    assert why_protected(Path("hermes-home/config.yaml"), tmp_path, write=False)
    assert why_secret(PurePosixPath("/home/me/.ssh/id_rsa")) == "SSH keys"
    assert why_secret(PurePosixPath("/etc/shadow")) == "password hashes"
    assert why_secret(PurePosixPath("a/shadow")) == ""


@pytest.mark.parametrize("name", LATER.split())
def test_what_runs_later_or_instructs(tmp_path, name):
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    assert why_later(Path(name), work)


@pytest.mark.parametrize("name", NOT_LATER.split())
def test_what_does_not(tmp_path, name):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    assert why_later(Path(name), tmp_path) == ""
    assert why_protected(Path(name), tmp_path, write=True) == ""


def test_a_link_that_leads_to_what_runs_later(tmp_path):
    (tmp_path / "notes").symlink_to(".github")
    assert why_later(Path("notes/workflows/x.yml"), tmp_path)


def test_a_module_beside_a_notebook_of_a_package(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/a.ipynb").touch()
    assert why_later(Path("pkg/random.py"), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="a hard link is unusual there")
def test_hard_links_to_secrets_are_neither_read_nor_found(tmp_path, use):
    (tmp_path / ".env").write_text("KEY=canary\n", encoding="utf-8")
    os.link(tmp_path / ".env", tmp_path / "plain.txt")
    (tmp_path / "other.txt").write_text("no canary\n", encoding="utf-8")
    with pytest.raises(ToolError, match="hard link"):
        use("read_file", path="plain.txt")
    with pytest.raises(ToolError, match="hard link"):
        use("write_file", path="plain.txt", content="x")
    assert "KEY" not in use("search_files", pattern="canary")
    assert "other.txt" in use("search_files", pattern="canary")


def test_a_hard_link_to_a_key_of_the_home(tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".ssh").mkdir(parents=True)
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh/id_rsa").write_text("x", encoding="utf-8")
    os.link(home / ".ssh/id_rsa", work / "readme.md")
    assert why_protected(Path("readme.md"), work, write=False)
    found = survey(work, home=home)
    assert found.files == (str(work / "readme.md"),)
    assert why_secret(work / "readme.md", found.linked)


def test_links_lead_to_secrets_and_insides(tmp_path):
    (tmp_path / "a.txt").symlink_to("/proc/self/environ")
    (tmp_path / "b.txt").symlink_to(".env")
    assert why_secret(tmp_path / "a.txt") == "internal data of a process"
    assert why_secret(tmp_path / "b.txt") == "environment secrets"
    assert why_secret(Path("/dev/zero")) and not why_secret(Path(os.devnull))


def test_a_survey_notices_what_is_new(tmp_path):
    home, work = tmp_path / "home", tmp_path / "home/work"
    (work / "deep/er").mkdir(parents=True)
    (home / ".cache").mkdir()
    os.mkfifo(work / "pipe")
    for place in (work, work / "deep/er"):
        os.utime(place, (1, 1))
    first = survey(work, home=home)
    assert (first.files, first.specials, first.complete) == ((), (str(work / "pipe"),), True)
    (work / "deep/er/.env").touch()
    assert survey(work, home=home).files == (str(work / "deep/er/.env"),)
    assert str(home / ".cache") in survey(home, home=home).directories
    assert not survey(work, home=home, seconds=0).complete


def test_folders_that_change_places_and_forge_their_times_are_looked_at_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(protected, "SETTLED", 0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/.env").touch()
    for name in ("a", "b"):
        os.utime(tmp_path / name, (1, 1))
    assert survey(tmp_path, home=tmp_path / "home").files == (str(tmp_path / "a/.env"),)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        (tmp_path / old).rename(tmp_path / new)
    assert survey(tmp_path, home=tmp_path / "home").files == (str(tmp_path / "b/.env"),)


def test_the_childs_environment():
    refused = "CONDA_TOKEN OPENAI_API_KEY HTTP_PROXY JUPYTER_TOKEN LD_PRELOAD BASH_ENV".split()
    kept = {"LC_ALL": "C", "CONDA_PREFIX": "/c", "https_proxy": "http://h", "PYTHONPATH": "/p"}
    given = {**dict.fromkeys(refused, "x"), **kept, "PATH": "/bin", "PAGER": "less"}
    given["HTTP_PROXY"] = "http://u:p@h"
    child = child_environment(given)
    assert child["PATH"].endswith(":/bin")
    assert kept.keys() <= child.keys()
    assert not child.keys() & set(refused)
    assert (child["PAGER"], child["TERM"], child["GIT_TERMINAL_PROMPT"]) == ("cat", "dumb", "0")

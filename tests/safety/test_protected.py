from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hermes_nb.safety.environment import child_environment
from hermes_nb.safety.protected import why_protected, why_secret

SECRET = """.env .env.local sub/.ENV .envrc .ssh/config .ssh/id_ed25519 id_rsa .aws/credentials
.config/gcloud/x.json .config/gh/hosts.yml .docker/config.json .netrc .pgpass .npmrc .pypirc
.git-credentials .kube/config .gnupg/x credentials.json server.pem private.key x.p12 x.kdbx
.local/share/jupyter/runtime/kernel-1.json .streamlit/secrets.toml .bash_history
.kaggle/kaggle.json .hermes/config.yaml hermes-home/config.yaml"""
RUNS = """.git/hooks/pre-commit .git/config .husky/pre-push .jupyter/jupyter_lab_config.py
.ipython/profile_default/startup/x.py .local/share/jupyter/kernels/x/kernel.json .mcp.json
.cursor/mcp.json .vscode/mcp.json .claude/settings.json jupyter_server_config.py
ipython_kernel_config.json .bashrc .profile .zshenv .gitconfig sitecustomize.py
hermes-home/SOUL.md hermes-home/memories/MEMORY.md .hermes/skills/x/SKILL.md .GIT/config"""
FREE = """a.py data/x.csv .gitignore .env.example .env.sample config.yaml .github/workflows/x.yml
AGENTS.md .vscode/settings.json model.pth keys.py environment.yml .config/app/x.toml"""


@pytest.mark.parametrize("path", SECRET.split())
def test_secrets(tmp_path, path):
    assert why_protected(Path(path), tmp_path, write=False)
    assert why_protected(Path(path), tmp_path, write=True)


@pytest.mark.parametrize("path", RUNS.split())
def test_what_runs_may_be_read_but_not_written(tmp_path, path):
    assert why_protected(Path(path), tmp_path, write=False) == ""
    assert why_protected(Path(path), tmp_path, write=True)


@pytest.mark.parametrize("path", FREE.split())
def test_the_rest_is_free(tmp_path, path):
    assert why_protected(Path(path), tmp_path, write=True) == ""


def test_links_are_followed(tmp_path):
    (tmp_path / ".env").touch()
    (tmp_path / "notes").symlink_to(".env")
    assert why_protected(Path("notes"), tmp_path, write=False) == "environment secrets"


def test_names_alone():
    assert why_secret(PurePosixPath("/home/me/.ssh/id_rsa")) == "SSH keys"
    assert why_secret(PurePosixPath("/etc/shadow")) == "password hashes"
    assert why_secret(PurePosixPath("a/shadow")) == ""


def test_the_childs_environment():
    given = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CONDA_PREFIX": "/c",
        "CONDA_TOKEN": "x",
        "OPENAI_API_KEY": "x",
        "HTTP_PROXY": "http://u:p@h",
        "https_proxy": "http://h",
        "JUPYTER_TOKEN": "x",
        "PYTHONPATH": "/p",
        "LD_PRELOAD": "/x.so",
        "BASH_ENV": "/x",
        "PAGER": "less",
    }
    child = child_environment(given)
    assert child["PATH"].endswith(":/bin")
    assert {"LC_ALL", "CONDA_PREFIX", "https_proxy", "PYTHONPATH"} <= child.keys()
    refused = {"CONDA_TOKEN", "OPENAI_API_KEY", "HTTP_PROXY", "JUPYTER_TOKEN", "LD_PRELOAD"}
    assert not (refused | {"BASH_ENV"}) & child.keys()
    assert (child["PAGER"], child["TERM"], child["GIT_TERMINAL_PROMPT"]) == ("cat", "dumb", "0")

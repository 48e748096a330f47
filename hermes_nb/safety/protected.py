"""Which paths hold secrets, or run as code behind the user's back, and so are not the model's.

Two lists: what must not be read (keys, tokens, password files) and what must not be written (the
same, and whatever a program later runs or obeys without asking: git hooks, Jupyter and IPython
start-up, shell start-up, MCP servers, the home of Hermes). The check is by name, on the path as
given and on where it really leads; it never opens a file. Names compare without case, because on
some file systems `.GIT` is `.git`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath

_SECRET_DIRECTORIES = {
    ".ssh": "SSH keys",
    ".gnupg": "GPG keys",
    ".aws": "AWS credentials",
    ".azure": "Azure credentials",
    ".kube": "Kubernetes credentials",
    ".password-store": "passwords",
}
_SECRET_PAIRS = {
    (".config", "gcloud"): "Google Cloud credentials",
    (".config", "gh"): "a GitHub token",
    (".docker", "config.json"): "registry credentials",
    ("jupyter", "runtime"): "connection keys of running kernels and servers",
    ("etc", "*shadow"): "password hashes",
    (".hermes", "config.yaml"): "the configuration of Hermes, which may hold keys",
    (".streamlit", "secrets.toml"): "secrets",
    (".huggingface", "token"): "a Hugging Face token",
    ("huggingface", "token"): "a Hugging Face token",
    (".kaggle", "kaggle.json"): "a Kaggle key",
}
_SECRET_FILES = {
    ".envrc": "environment secrets",
    ".netrc": "passwords",
    "_netrc": "passwords",
    ".pgpass": "database passwords",
    ".my.cnf": "database passwords",
    ".npmrc": "a registry token",
    ".pypirc": "a registry token",
    ".git-credentials": "git passwords",
    ".htpasswd": "password hashes",
    ".vault-token": "a Vault token",
    "credentials": "credentials",
    "credentials.json": "credentials",
    "application_default_credentials.json": "Google Cloud credentials",
    "client_secret*.json": "a client secret",
    ".*_history": "what was typed, passwords among it",
    "id_rsa": "an SSH key",
    "id_dsa": "an SSH key",
    "id_ecdsa*": "an SSH key",
    "id_ed25519*": "an SSH key",
    "*.key": "a private key",
    "*.p12": "a private key",
    "*.pem": "a private key or certificate",
    "*.pfx": "a private key",
    "*.kdbx": "a password database",
    "*.ppk": "an SSH key",
}
_ENV_EXAMPLES = (".example", ".sample", ".template", ".dist", ".defaults")
"""`.env.example` and its like are made to be shared."""

_RUN_DIRECTORIES = {
    ".git": "git's own files, hooks among them",
    ".husky": "git hooks",
    ".jupyter": "Jupyter's configuration",
    ".ipython": "IPython's start-up",
    ".hermes": "the home of Hermes; its own tools change that",
}
_RUN_PAIRS = {
    ("share", "jupyter"): "Jupyter's kernels and extensions",
    ("etc", "jupyter"): "Jupyter's configuration",
    ("library", "jupyter"): "Jupyter's kernels and extensions",
    (".cursor", "mcp.json"): "an MCP configuration",
    (".vscode", "mcp.json"): "an MCP configuration",
    (".vscode", "tasks.json"): "tasks that an editor runs",
    (".claude", "settings*.json"): "an agent's configuration",
}
_RUN_FILES = {
    ".mcp.json": "an MCP configuration",
    "mcp.json": "an MCP configuration",
    "jupyter_*config.py": "Jupyter's configuration",
    "jupyter_*config.json": "Jupyter's configuration",
    "ipython_*config.py": "IPython's configuration",
    "ipython_*config.json": "IPython's configuration",
    "sitecustomize.py": "code that every Python runs",
    "usercustomize.py": "code that every Python runs",
    ".bashrc": "shell start-up",
    ".bash_profile": "shell start-up",
    ".bash_login": "shell start-up",
    ".bash_logout": "shell start-up",
    ".profile": "shell start-up",
    ".zshrc": "shell start-up",
    ".zshenv": "shell start-up",
    ".zprofile": "shell start-up",
    ".gitconfig": "git's configuration",
    "authorized_keys": "SSH logins",
}


def why_protected(path: Path, root: Path, *, write: bool) -> str:
    """Return what makes `path` off limits for reading, or for writing if `write`; "" if nothing.

    A relative path is taken from `root`. The text completes "... is protected: ".
    """
    given = root / path
    for candidate in dict.fromkeys((given, Path(os.path.realpath(given)))):
        if reason := _reason(candidate, write=write):
            return reason
    return ""


def why_secret(path: PurePath) -> str:
    """Return what a path would reveal, by its name alone; "" if it looks harmless."""
    return _secret(tuple(part.casefold() for part in path.parts))


def _reason(path: Path, *, write: bool) -> str:
    parts = tuple(part.casefold() for part in path.parts)
    if reason := _secret(parts):
        return reason
    home = _hermes_home()
    if path == home / "config.yaml":
        return "the configuration of Hermes, which may hold keys"
    if not write:
        return ""
    if path.is_relative_to(home):
        return _RUN_DIRECTORIES[".hermes"]
    return _look_up(parts, _RUN_DIRECTORIES, _RUN_PAIRS, _RUN_FILES)


def _secret(parts: tuple[str, ...]) -> str:
    name = parts[-1] if parts else ""
    if name == ".env" or (name.startswith(".env.") and not name.endswith(_ENV_EXAMPLES)):
        return "environment secrets"
    return _look_up(parts, _SECRET_DIRECTORIES, _SECRET_PAIRS, _SECRET_FILES)


def _look_up(
    parts: tuple[str, ...],
    directories: dict[str, str],
    pairs: dict[tuple[str, str], str],
    files: dict[str, str],
) -> str:
    for part in parts:
        if part in directories:
            return directories[part]
    for first, second in pairwise(parts):
        for (one, two), reason in pairs.items():
            if first == one and fnmatchcase(second, two):
                return reason
    match: Callable[[str], bool] = lambda pattern: fnmatchcase(parts[-1], pattern)  # noqa: E731
    return next((why for pattern, why in files.items() if parts and match(pattern)), "")


def _hermes_home() -> Path:
    given = os.environ.get("HERMES_HOME", "")
    return Path(os.path.realpath(Path(given).expanduser() if given else Path.home() / ".hermes"))

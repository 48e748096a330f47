"""Environment variables for child processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ"),
    *("TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
    *("VIRTUAL_ENV", "CONDA_*", "MAMBA_*", "PYENV_*", "PYTHONPATH", "PYTHONHOME"),
    *("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
    *("PYTHONNOUSERSITE", "PYTHONUSERBASE", "MPLBACKEND", "R_HOME", "R_LIBS*", "JAVA_HOME"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_*", "NVIDIA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
)
"""Patterns for the variables that are passed on."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SEARCHED = frozenset({"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})
"""Search paths in which an empty or relative entry refers to the working directory."""
_FIXED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
"""The child has no interactive terminal: disable pagers, prompts, colours and buffering."""


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of `environment` (default: this process's) that a child may see.

    Names that look like secrets and proxies with a password are removed. If this Python's directory
    is missing from PATH, it is added at the front, so that `python` and `pip` are the kernel's.
    """
    source = os.environ if environment is None else environment
    child = {name: value for name, value in source.items() if _passes(name, value)}
    for name in _SEARCHED.intersection(child):
        places = [place for place in child[name].split(os.pathsep) if Path(place).is_absolute()]
        child[name] = os.pathsep.join(places)
    here = str(Path(sys.executable).parent)
    path = child.get("PATH") or os.defpath
    if here not in path.split(os.pathsep):
        path = os.pathsep.join([here, path])
    return {**child, "PATH": path, **_FIXED}


def _passes(name: str, value: str) -> bool:
    if _SECRET.search(name):
        return False
    if name.casefold().endswith("_proxy") and "@" in value:
        return False
    return any(fnmatchcase(name, pattern) for pattern in _ALLOWED)

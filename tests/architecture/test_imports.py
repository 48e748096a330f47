"""What an import costs and what it drags in, each in a process of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import hermes_nb
import pytest

PACKAGE = Path(hermes_nb.__file__).parent
HEAVY = ("openai", "IPython", "ipywidgets", "httpx", "pandas", "numpy", "yaml", "sqlite3")


def modules_after(code, cwd):
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=cwd
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_is_next_to_nothing(tmp_path, home):
    loaded = modules_after("import hermes_nb", tmp_path)
    assert not loaded.intersection(HEAVY)
    ours = {name for name in loaded if name.startswith("hermes_nb")}
    assert ours == {"hermes_nb", "hermes_nb.moved"}
    assert not list(tmp_path.glob("*"))
    assert not home.exists()


def test_loading_the_extension_loads_no_sdk_and_writes_nothing(tmp_path, home):
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'hermes_nb')"
    )
    loaded = modules_after(code, tmp_path)
    assert not loaded.intersection({"openai", "ipywidgets", "httpx", "pandas", "yaml"})
    assert not home.exists()


@pytest.mark.slow
def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


@pytest.mark.slow
def test_sizes_are_reported(record_property, capsys):
    """Long modules and functions ask a question; this one prints them, and bounds functions.

    A module is one thing, and its length follows: a bound glues unrelated parts together elsewhere.
    """
    modules, functions = {}, {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(PACKAGE))
        modules[name] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[f"{name}:{node.name}"] = node.end_lineno - node.lineno + 1
    long_modules = {name: size for name, size in modules.items() if size > 300}
    long_functions = {name: size for name, size in functions.items() if size > 45}
    record_property("long_modules", long_modules)
    record_property("long_functions", long_functions)
    with capsys.disabled():
        print(f"\nmodules over 300 lines: {long_modules}; functions over 45: {long_functions}")
    assert max(functions.values()) <= 70

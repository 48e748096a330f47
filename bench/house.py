"""The size of the house, and how far a turn walks through it, against the limits of a stage.

Run with `make house STAGE=safe`; without a stage the last one of `house.json` counts. Prints lines,
code lines (no blanks, comments or docstrings) and files of the package, modules that exactly one
other module imports (a "hermes_nb.module:name" in a string imports, too), lines that name `Any`,
`# noqa`, `lambda:` without arguments, and lines of tests. `--walk` adds turns in a shell with a
scripted model: modules entered, switches between them and calls. Ends with 1 above a limit.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import collections
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import threading
import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "hermes_nb"
STAGES = json.loads(Path(__file__).with_name("house.json").read_text(encoding="utf-8"))
WALKS = {
    "first turn": 110,
    "answer": 35,
    "read": 45,
    "edit": 52,
    "edit, asked": 58,
    "two children": 60,
    "compress": 45,
}
"""Modules that a turn may enter, from the stage `house` on."""
BEFORE = {
    "first turn": 193,
    "answer": 74,
    "read": 90,
    "edit": 119,
    "edit, asked": 130,
    "two children": 134,
    "compress": 86,
}
"""What they entered before the first stage; the stages up to `house` may add `MORE`."""
MORE = 6
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
STRING_IMPORT = re.compile(r"(hermes_nb[\w.]*):\w+")


def sizes() -> dict[str, int]:
    """Count what can be read off the files."""
    files = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    users = importers(files)
    inner = [module(path) for path in files if path.name != "__init__.py"]
    texts = files.values()
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "code lines": sum(code_lines(text) for text in texts),
        "files": len(files),
        "one importer": sum(len(users[name]) == 1 for name in inner),
        "Any": sum(len(re.findall(r"^.*\bAny\b.*$", text, re.MULTILINE)) for text in texts),
        "noqa": sum(text.count("# noqa") for text in texts),
        "lambda:": sum(len(re.findall(r"\blambda:", text)) for text in texts),
        "test lines": sum(
            len(path.read_text(encoding="utf-8").splitlines())
            for path in (REPOSITORY / "tests").rglob("*.py")
        ),
    }


def module(path: Path) -> str:
    name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    return name.removesuffix(".__init__")


def importers(files: dict[Path, str]) -> dict[str, set[str]]:
    """Return for each module the modules that import it."""
    modules = {module(path) for path in files}
    users = collections.defaultdict(set)
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            for name in imported(node, modules):
                users[name].add(module(path))
    return users


def imported(node: ast.AST, modules: set[str]) -> list[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hermes_nb"):
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in modules else str(node.module) for name in whole]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        named = STRING_IMPORT.fullmatch(node.value)
        return [named[1]] if named else []
    return []


def code_lines(text: str) -> int:
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


class Walker:
    """Counts, for cells that it runs, what of the package they enter."""

    def __init__(self, shell) -> None:
        self.shell = shell
        self.entered: list[str] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.within = f"{PACKAGE}{os.sep}"

    def walk(self, cell: str) -> tuple[list[str], int, int]:
        """Run a cell; return modules entered, switches between them, and calls."""
        self.entered.clear()
        self.calls.clear()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        self.run(cell)
        sys.setprofile(None)
        threading.setprofile(None)
        return list(self.calls), len(self.entered), sum(self.calls.values())

    def run(self, cell: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.shell.run_cell(cell)

    def _profile(self, frame, event, _argument) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(self.within):
            return
        name = file[len(self.within) :]
        self.calls[name] += 1
        if not self.entered or self.entered[-1] != name:
            self.entered.append(name)


class Terminal(io.StringIO):
    """Somebody who can be asked."""

    def isatty(self) -> bool:
        return True


def walks() -> dict[str, tuple[list[str], int, int]]:
    """Take one turn of each kind in a folder and a home of their own."""
    sys.path.insert(0, str(REPOSITORY))
    os.environ["HERMES_HOME"] = tempfile.mkdtemp()
    os.chdir(tempfile.mkdtemp())
    Path("a.txt").write_text("hello\n", encoding="utf-8")
    from hermes_nb import use_model
    from hermes_nb.models.scripted import ScriptedModel, call
    from IPython.core.interactiveshell import InteractiveShell

    walker = Walker(InteractiveShell.instance())
    walker.run("%load_ext hermes_nb")
    use_model(
        ScriptedModel(
            [
                *("Warm.", "Hi.", call("read_file", path="a.txt"), "Read."),
                *(call("write_file", path="b.txt", content="x"), "Written."),
                *(call("write_file", path="c.txt", content="x"), "Written."),
                call("delegate_task", tasks=["count files", "count lines"]),
                *("one", "two", "Both."),
            ]
        )
    )
    found = {
        "first turn": walker.walk("%%hermes\nwarm up"),
        "answer": walker.walk("%%hermes\nhello"),
        "read": walker.walk("%%hermes\nread"),
        "edit": walker.walk("%%hermes --approve edits\nwrite"),
    }
    builtins.input = lambda *_, **__: "y"
    sys.stdin = Terminal("y\n" * 5)
    found["edit, asked"] = walker.walk("%%hermes --approve ask\nwrite")
    found["two children"] = walker.walk("%%hermes --approve all\ndelegate")
    long = [f"Answer {i}. " + "word " * 6000 for i in range(30)]
    use_model(ScriptedModel([*long, *["## Goal\nsummary\n"] * 6], window=200_000))
    for i in range(30):
        walker.run(f"%%hermes\nquestion {i} " + "please " * 300)
    found["compress"] = walker.walk("%hermes compress")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="the figures of the house")
    parser.add_argument("--stage", choices=list(STAGES), default=list(STAGES)[-1])
    parser.add_argument("--walk", action="store_true", help="take turns, too")
    parser.add_argument("--modules", action="store_true", help="name the modules of each turn")
    arguments = parser.parse_args()
    limits = STAGES[arguments.stage]
    figures = sizes()
    over = [
        f"{name} {n} > {limits[name]}" for name, n in figures.items() if n > limits.get(name, n)
    ]
    print(" · ".join(f"{name} {n}" for name, n in figures.items()))
    early = list(STAGES).index(arguments.stage) < list(STAGES).index("house")
    taken = walks() if arguments.walk or arguments.modules else {}
    for name, (modules, switches, calls) in taken.items():
        print(f"{name}: {len(modules)} modules, {switches} switches, {calls} calls")
        if arguments.modules:
            print("  " + " ".join(sorted(modules)))
        limit = BEFORE[name] + MORE if early else WALKS[name]
        if len(modules) > limit:
            over.append(f"{name} {len(modules)} > {limit}")
    if over:
        print("over: " + "; ".join(over))
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())

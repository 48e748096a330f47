"""Figures of the package's structure, against the limits of a stage.

Run with `make house STAGE=bound`; without a stage the last one of `house.json` counts.

core, extras    lines of hermes_nb/ without and within hermes_nb/extras/
core code       lines of the core without blanks, comments and docstrings
doors           imports (relative ones and "module:name" in strings too) into hermes_nb.extras from
                outside, or from one extra into another; moved.py, the table of old paths, may
providers       zero-argument callables that return a value (`Callable[[], T]`), in the core
policy users    modules of the core that import the administrator's policy
glued           modules with two or more parts (35 lines or more) that share no name
homonyms        class names that two or more modules of the core define
bare fields     fields of public data classes (four fields or more) with no text at the field
Any, noqa       uses of the name `Any`, `# noqa` comments

`--names` lists what is counted. `--walk` adds turns in a shell with a scripted model: modules
entered, switches between them and calls; `--modules` names the modules. Exits with 1 above a limit.
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
PACKAGE = Path("hermes_nb")
LEAST = 35
"""Lines of a part that counts as one of a module's several."""
WALKS = {
    "first turn": 93,
    "answer": 40,
    "read": 53,
    "edit": 61,
    "edit, asked": 63,
    "two children": 74,
    "compress": 61,
}
"""Modules that each turn entered at 148fa57; `MORE` times as many are allowed."""
MORE = 1.25


def modules() -> dict[Path, str]:
    """Return the package's modules with their text."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def extra(path: Path) -> str:
    """Return the extra that a module belongs to, "" for the core."""
    parts = path.parts
    return parts[2] if len(parts) > 3 and parts[1] == "extras" else ""


def named(node: ast.AST, path: Path) -> list[str]:
    """Return what a node imports, absolute; a "hermes_nb.extras.x:name" in a string counts."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = ".".join(path.with_suffix("").parts[: -node.level]) if node.level else ""
        module = ".".join(filter(None, (above, node.module)))
        return [f"{module}.{alias.name}" for alias in node.names]
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return [text] if re.fullmatch(r"hermes_nb\.extras\.[\w.]+(?::\w+)?", text) else []


def doors(files: dict[Path, str]) -> list[str]:
    """Return imports into an extra from anywhere but itself."""
    found = []
    for path, text in files.items():
        if path == PACKAGE / "moved.py":
            continue
        for node in ast.walk(ast.parse(text)):
            for name in named(node, path):
                match = re.match(r"hermes_nb\.extras(?:\.(\w+)|$)", name)
                if match and (match[1] or "") != extra(path):
                    found.append(f"{path}:{getattr(node, 'lineno', 0)} {name}")
    return sorted(set(found))


def code_lines(text: str) -> int:
    """Count lines that hold code: not blank, not a comment, not part of a docstring."""
    skip = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def policy_user(text: str) -> bool:
    """Say whether a module imports the administrator's policy."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if (node.module == "hermes_nb.safety.administrator" and "policy" in names) or (
                node.module == "hermes_nb.safety" and "administrator" in names
            ):
                return True
    return False


def uses_of_any(text: str) -> list[int]:
    """Return the lines where the name `Any` is used or imported."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if (isinstance(node, ast.Name) and node.id == "Any") or (
            isinstance(node, ast.alias) and node.name == "Any"
        ):
            found.append(node.lineno)
    return sorted(set(found))


def parts(text: str) -> list[list[str]]:
    """Return groups of top-level definitions that name each other, of LEAST lines or more."""
    owner: dict[str, str] = {}
    spans: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                leaf.id
                for target in targets
                for leaf in ast.walk(target)
                if isinstance(leaf, ast.Name)
            ]
        else:
            names = []
        names = [name for name in names if name not in ("logger", "__all__")]
        if names:
            owner.update(dict.fromkeys(names, names[0]))
            spans[names[0]] = node
    parent = {name: name for name in spans}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for name, node in spans.items():
        for leaf in ast.walk(node):
            used = (
                leaf.id
                if isinstance(leaf, ast.Name)
                else leaf.value
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
                else ""
            )
            if used in owner and owner[used] != name:
                parent[root(name)] = root(owner[used])
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name in spans:
        groups[root(name)].append(name)
    size = lambda names: sum((spans[n].end_lineno or 0) - spans[n].lineno + 1 for n in names)  # noqa: E731
    return sorted(
        (names for names in groups.values() if size(names) >= LEAST), key=size, reverse=True
    )


def bare_fields(text: str) -> list[str]:
    """Return undescribed fields of public data classes with four fields or more."""
    bare = []
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if (
            not isinstance(node, ast.ClassDef)
            or node.name.startswith("_")
            or not any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        ):
            continue
        fields = [
            (i, each)
            for i, each in enumerate(node.body)
            if isinstance(each, ast.AnnAssign)
            and not ast.unparse(each.annotation).startswith("ClassVar")
        ]
        if len(fields) < 4:
            continue
        for i, each in fields:
            after = node.body[i + 1] if i + 1 < len(node.body) else None
            told = (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            )
            tail = lines[(each.end_lineno or each.lineno) - 1][each.end_col_offset :].strip()
            noted = (tail.startswith("#") and "noqa" not in tail) or lines[
                each.lineno - 2
            ].strip().startswith("#")
            if not told and not noted:
                bare.append(f"{node.name}.{ast.unparse(each.target)}")
    return bare


def figures(files: dict[Path, str]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the figures, and the names behind them."""
    core = {
        path: text
        for path, text in files.items()
        if not extra(path) and path.parts[1:2] != ("extras",)
    }
    classes = collections.defaultdict(set)
    for path, text in core.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(str(path))
    names = {
        "doors": doors(files),
        "providers": [
            f"{p}:{i}"
            for p, t in core.items()
            for i, line in enumerate(t.splitlines(), 1)
            for _ in re.findall(r"Callable\[\[\],(?!\s*None\])", line)
        ],
        "policy users": [str(p) for p, t in core.items() if policy_user(t)],
        "glued": [
            f"{p}: " + " | ".join(", ".join(g[:3]) for g in groups)
            for p, t in core.items()
            if t.count("\n") >= 150 and len(groups := parts(t)) > 1
        ],
        "homonyms": [
            f"{name}: {', '.join(sorted(where))}"
            for name, where in sorted(classes.items())
            if len(where) > 1
        ],
        "bare fields": [f"{p}: {name}" for p, t in core.items() for name in bare_fields(t)],
        "Any": [f"{p}:{i}" for p, t in files.items() for i in uses_of_any(t)],
        "noqa": [
            f"{p}:{i}"
            for p, t in files.items()
            for i, line in enumerate(t.splitlines(), 1)
            if "# noqa" in line
        ],
    }
    counted = {
        "core": sum(t.count("\n") for t in core.values()),
        "core code": sum(map(code_lines, core.values())),
        "extras": sum(t.count("\n") for p, t in files.items() if p not in core),
        "files": len(files),
        "test lines": sum(
            p.read_text(encoding="utf-8").count("\n") for p in Path("tests").rglob("*.py")
        ),
    }
    return counted | {key: len(found) for key, found in names.items()}, names


INDEXING = "hermes-index"
"""The thread that updates the search index; it may or may not run while a walk is recorded."""


class Walker:
    """Counts, for cells that it runs, what of the package they enter."""

    def __init__(self, shell) -> None:
        self.shell = shell
        self.entered: list[str] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.within = f"{REPOSITORY / PACKAGE}{os.sep}"

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
        if threading.current_thread().name == INDEXING:
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
    """Print the figures; fail above the limits of a stage."""
    stages = json.loads(Path(__file__).with_name("house.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="figures of the package's structure")
    parser.add_argument("--stage", choices=list(stages), default=list(stages)[-1])
    parser.add_argument("--names", action="store_true", help="name what is counted")
    parser.add_argument("--walk", action="store_true", help="take turns, too")
    parser.add_argument("--modules", action="store_true", help="name the modules of each turn")
    options = parser.parse_args()
    os.chdir(REPOSITORY)
    counted, names = figures(modules())
    print(" · ".join(f"{name} {n}" for name, n in counted.items()))
    if options.names:
        for key, found in names.items():
            print(f"\n{key}:", *found, sep="\n  ")
    limits = stages[options.stage]
    over = [
        f"{name} {n} > {limits[name]}" for name, n in counted.items() if n > limits.get(name, n)
    ]
    for name, (entered, switches, calls) in (
        walks() if options.walk or options.modules else {}
    ).items():
        print(f"{name}: {len(entered)} modules, {switches} switches, {calls} calls")
        if options.modules:
            print("  " + " ".join(sorted(entered)))
        if len(entered) > (limit := int(WALKS[name] * MORE)):
            over.append(f"{name} {len(entered)} > {limit}")
    if over:
        print("over: " + "; ".join(over))
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())

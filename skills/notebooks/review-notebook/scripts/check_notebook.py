"""Look through a saved notebook for what usually goes wrong; nothing of it is run."""

from __future__ import annotations

import ast
import builtins
import json
import re
from pathlib import Path

LONG = 60
PATHS = re.compile(r"""["'](?:/(?:home|Users|mnt|tmp|data)/|[A-Za-z]:\\\\|~/)[^"']*["']""")
SECRETS = re.compile(r"""(?i)(?:api_?key|passw(?:or)?d|secret|token)\w*\s*=\s*["'][^"']{6,}["']""")
RANDOM = re.compile(r"\b(?:np\.random\.(?!default_rng|seed|Generator)|random\.(?!seed|Random|state))\w+\(")
SEEDED = re.compile(r"random_state|default_rng\(\d|\.seed\(|manual_seed")
KNOWN = set(dir(builtins)) | {"get_ipython", "display", "In", "Out", "_", "__", "___", "exit", "quit"}


def check(path: str) -> str:
    """Return a line for each suspicion: `cell INDEX (ID): what`."""
    book = json.loads(Path(path).read_text(encoding="utf-8"))
    cells = [(n, c) for n, c in enumerate(book.get("cells", [])) if c.get("cell_type") == "code"]
    found: list[str] = []
    defined: set[str] = set()
    imported: dict[str, str] = {}
    used: set[str] = set()
    last = 0
    source_of_all = "\n".join(_source(cell) for _, cell in cells)
    for number, cell in cells:
        where = f"cell {number} ({cell.get('id', 'no id')})"
        source = _source(cell)
        if not source.strip():
            continue
        count = cell.get("execution_count")
        if count is None:
            found.append(f"{where}: never run")
        else:
            if count < last:
                found.append(f"{where}: ran before a cell above it ([{count}] after [{last}])")
            last = max(last, count)
        if any(output.get("output_type") == "error" for output in cell.get("outputs", ())):
            found.append(f"{where}: shows an error")
        if source.count("\n") >= LONG:
            found.append(f"{where}: {source.count(chr(10)) + 1} lines long")
        found += [f"{where}: absolute or personal path {m[0]}" for m in PATHS.finditer(source)]
        if SECRETS.search(source):
            found.append(f"{where}: looks like a secret in the code")
        if RANDOM.search(source) and not SEEDED.search(source_of_all):
            found.append(f"{where}: random numbers without a seed")
        tree = _tree(source)
        if tree is None:
            found.append(f"{where}: could not be parsed (magic, or a mistake)")
            continue
        names = _Names()
        names.visit(tree)
        missing = sorted(names.used - names.defined - defined - KNOWN)
        if missing:
            found.append(f"{where}: uses {', '.join(missing)} before any cell defines it")
        for name in names.imported:
            imported.setdefault(name, where)
        used |= names.used
        defined |= names.defined
    found += [f"{imported[n]}: {n} is imported and not used" for n in sorted(set(imported) - used)]
    return "\n".join(found) or "nothing suspicious"


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _tree(source: str) -> ast.Module | None:
    """Return the cell's syntax tree, with magics and shell lines taken out."""
    if source.lstrip().startswith("%%"):
        return None
    lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n")]
    try:
        return ast.parse("\n".join(line.rstrip("?") for line in lines))
    except (SyntaxError, ValueError):
        return None


class _Names(ast.NodeVisitor):
    """Names that a cell defines for others, and names it takes from elsewhere."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self.used: set[str] = set()
        self.imported: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.defined:
                self.used.add(node.id)
            self.used.add(node.id)
        else:
            self.defined.add(node.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        self.defined |= names
        self.imported |= names

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.defined.add(node.name)
        inner = _Names()
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        inner.defined |= {a.arg for a in every}
        inner.defined |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
        for part in [*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self.visit(part)
        for statement in node.body:
            inner.visit(statement)
        self.used |= inner.used - inner.defined

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        inner = _Names()
        inner.defined |= {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
        inner.visit(node.body)
        self.used |= inner.used - inner.defined

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.defined.add(node.name)
        inner = _Names()
        for part in [*node.decorator_list, *node.bases, *node.body]:
            inner.visit(part)
        self.used |= inner.used - inner.defined

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.defined.add(node.name)
        self.generic_visit(node)

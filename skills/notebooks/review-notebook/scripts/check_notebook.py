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
RANDOM = re.compile(
    r"\b(?:np\.random\.(?!default_rng|seed|Generator)|random\.(?!seed|Random|state))\w+\("
    r"|\.sample\("
)
MAGIC = re.compile(r"\s*[%!]")
SEEDED = re.compile(r"random_state|default_rng\(\d|\.seed\(|manual_seed")
OF_IPYTHON = {"get_ipython", "display", "In", "Out", "_", "__", "___", "exit", "quit"}
KNOWN = set(dir(builtins)) | OF_IPYTHON


def check(path: str) -> str:
    """Return a line for each suspicion: `cell INDEX (ID): what`."""
    book = json.loads(Path(path).read_text(encoding="utf-8"))
    cells = [(n, c) for n, c in enumerate(book.get("cells", [])) if c.get("cell_type") == "code"]
    seeded = any(SEEDED.search(_source(cell)) for _, cell in cells)
    found: list[str] = []
    defined: set[str] = set()
    used: set[str] = set()
    imported: dict[str, str] = {}
    last = 0
    for number, cell in cells:
        source = _source(cell)
        if not source.strip():
            continue
        where = f"cell {number} ({cell.get('id', 'no id')})"
        suspicions = [*_of_the_run(cell, last), *_of_the_text(source, seeded=seeded)]
        last = max(last, cell.get("execution_count") or 0)
        tree = _tree(source)
        if tree is None:
            suspicions.append("could not be parsed (magic, or a mistake)")
        else:
            names = _Names()
            names.visit(tree)
            if missing := sorted(names.used - names.defined - defined - KNOWN):
                suspicions.append(f"uses {', '.join(missing)} before any cell defines it")
            for name in names.imported:
                imported.setdefault(name, where)
            used |= names.used
            defined |= names.defined
        found += [f"{where}: {each}" for each in suspicions]
    found += [f"{imported[n]}: {n} is imported and not used" for n in sorted(set(imported) - used)]
    return "\n".join(found) or "nothing suspicious"


def _of_the_run(cell: dict, last: int) -> list[str]:
    """Return what is odd about how a cell was run; `last` is the highest count above it."""
    count = cell.get("execution_count")
    found = []
    if count is None:
        found.append("never run")
    elif count < last:
        found.append(f"ran before a cell above it ([{count}] after [{last}])")
    if any(output.get("output_type") == "error" for output in cell.get("outputs", ())):
        found.append("shows an error")
    return found


def _of_the_text(source: str, *, seeded: bool) -> list[str]:
    """Return what is odd about a cell's code, taken as text."""
    lines = source.count("\n") + 1
    found = [f"{lines} lines long"] if lines > LONG else []
    found += [f"absolute or personal path {match[0]}" for match in PATHS.finditer(source)]
    if SECRETS.search(source):
        found.append("looks like a secret in the code")
    if RANDOM.search(source) and not seeded:
        found.append("random numbers without a seed")
    return found


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _tree(source: str) -> ast.Module | None:
    """Return the cell's syntax tree, with magics and shell lines taken out."""
    if source.lstrip().startswith("%%"):
        return None
    lines = (line.rstrip("?") for line in source.split("\n"))
    try:
        return ast.parse("\n".join("pass" if MAGIC.match(line) else line for line in lines))
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
            self.used.add(node.id)
        else:
            self.defined.add(node.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        self.defined |= names
        self.imported |= names

    visit_ImportFrom = visit_Import  # noqa: N815 - as ast calls it

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.defined.add(node.name)
        inner = _Names()
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        inner.defined |= {a.arg for a in every}
        inner.defined |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
        defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        for part in [*node.decorator_list, *defaults]:
            self.visit(part)
        for statement in node.body:
            inner.visit(statement)
        self.used |= inner.used - inner.defined

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - as ast calls it

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

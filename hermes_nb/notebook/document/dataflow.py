"""Find stale cells: cells whose output no longer fits the code above them, without running any.

What a cell reads, binds and changes comes from its syntax tree. Not visible are names made by
`exec`, star imports and most magics, changes inside a library's own state, and files that one cell
writes and another reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_MUTATORS = frozenset(
    "append extend insert pop popitem remove clear update setdefault add discard sort reverse"
    " appendleft extendleft fit fit_transform partial_fit compile load_state_dict step backward"
    " shuffle seed writelines insert_column replace_column put fill resize".split()
)
_PURE = frozenset(
    "print len sum min max sorted list dict set tuple str int float bool range enumerate zip map"
    " filter type isinstance repr abs round any all display id hash iter reversed getattr hasattr"
    " format".split()
)
_HIDES = ("exec", "eval", "globals", "locals")
_MAGIC = re.compile(r"(?m)^([ \t]*)(?:[%!?].*|.*\?[ \t]*)$")
_CELL_MAGIC = re.compile(r"\s*%%(\w+)[^\n]*\n?")
_RUNS_ITS_BODY = ("time", "timeit", "capture", "prun", "checkpoint")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(slots=True)
class Flow:
    """What a cell, or the body of a function, does with names."""

    reads: set[str] = field(default_factory=set)
    """Names that it reads."""
    binds: set[str] = field(default_factory=set)
    """Names that it binds."""
    changes: set[str] = field(default_factory=set)
    """Names whose objects it changes in place."""
    maybe: set[str] = field(default_factory=set)
    """Bound names that keep their old value if a condition does not hold."""
    perhaps: set[str] = field(default_factory=set)
    """Names whose objects it gives to a function, which may change them."""
    functions: dict[str, Flow] = field(default_factory=dict)
    """The bodies of its functions and classes."""
    imports: set[str] = field(default_factory=set)
    """Names that it imports."""
    hidden: bool = False
    """Whether it may use names that the source does not show."""


@lru_cache(maxsize=2_000)
def flow_of(source: str) -> Flow:
    """Return the names that a code cell reads, binds and changes."""
    flow = Flow()
    if found := _CELL_MAGIC.match(source):
        if found[1] not in _RUNS_ITS_BODY:
            return flow
        source = source[found.end() :]
    try:
        tree = ast.parse(_MAGIC.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return flow
    try:
        _Scope(flow, None).body(tree.body)
    except RecursionError:
        flow.hidden = True
    return flow


class _Scope:
    """Visits one scope in the order of execution; `local` is None at the top of the cell."""

    def __init__(self, flow: Flow, local: set[str] | None) -> None:
        self.flow, self.local = flow, local
        self.bound: set[str] = set()
        self.called: set[str] = set()

    def body(self, statements: Sequence[ast.AST]) -> None:
        for each in statements:
            self.visit(each)

    def _bind(self, name: str) -> None:
        (self.flow.binds if self.local is None else self.local).add(name)
        self.bound.add(name)

    def _read(self, name: str) -> None:
        if name in self.flow.functions and name not in self.called:  # defined in this cell
            self.called.add(name)
            for each in sorted(self.flow.functions[name].reads):
                self._read(each)
            self.flow.changes |= self.flow.functions[name].changes
        if name not in self.bound and name not in (self.local or ()):
            self.flow.reads.add(name)

    def _change(self, node: ast.AST, into: set[str]) -> None:
        """Record a change of the object that an attribute, item or method belongs to."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name) and node.id not in (self.local or ()):
            into.add(node.id)

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                self._name(node)
            case ast.Attribute() | ast.Subscript():
                self._part(node)
            case ast.Call():
                self._call(node)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.AsyncFor():
                self._assignment(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                self._definition(node)
            case ast.If():
                self._condition(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case _:
                self._children(node)

    def _assignment(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor
    ) -> None:
        """Visit the value before the target."""
        match node:
            case ast.Assign():
                self.body([node.value, *node.targets])
            case ast.AnnAssign():
                self.body([node.value, node.target] if node.value is not None else [])
            case ast.AugAssign():
                self._augmented(node)
            case _:
                self.body([node.iter, node.target, *node.body, *node.orelse])

    def _condition(self, node: ast.If) -> None:
        self.visit(node.test)
        before = set(self.bound)
        self.body(node.body)
        one, self.bound = self.bound, set(before)
        self.body(node.orelse)
        if self.local is None:
            self.flow.maybe |= one ^ self.bound
        self.bound &= one

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    ) -> None:
        match node:
            case ast.ClassDef():
                self._class(node)
            case ast.Lambda():
                self._lambda(node)
            case _:
                self._function(node)

    def _children(self, node: ast.AST) -> None:
        self.body([*ast.iter_child_nodes(node)])

    def _name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
        else:
            self._bind(node.id)

    def _part(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._change(node, self.flow.changes)
        self._children(node)

    def _augmented(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
            self._change(node.target, self.flow.changes)
        self.visit(node.target)

    def _call(self, node: ast.Call) -> None:
        self._children(node)
        function = node.func
        if isinstance(function, ast.Attribute):
            inplace = any(
                k.arg == "inplace" and getattr(k.value, "value", True) for k in node.keywords
            )
            if function.attr in _MUTATORS or inplace:
                self._change(function.value, self.flow.changes)
        elif isinstance(function, ast.Name) and function.id not in _PURE:
            self.flow.hidden = self.flow.hidden or function.id in _HIDES
            for argument in [*node.args, *(k.value for k in node.keywords)]:
                if isinstance(argument, ast.Name):
                    self._change(argument, self.flow.perhaps)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = (alias.asname or alias.name).split(".")[0]
            self.flow.hidden = self.flow.hidden or name == "*"
            self._bind(name)
            self.flow.imports.add(name)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.body(node.decorator_list)
        inside = self._inside(node)
        self._bind(node.name)
        self.flow.functions[node.name] = inside

    def _lambda(self, node: ast.Lambda) -> None:
        inside = self._inside(node)
        for name in inside.reads:
            self._read(name)
        self.flow.changes |= inside.changes - (self.local or set())

    def _class(self, node: ast.ClassDef) -> None:
        inside = Flow()
        _Scope(inside, set(self.local or ())).body([*node.decorator_list, *node.bases, *node.body])
        _merge(inside)
        self._bind(node.name)
        self.flow.functions[node.name] = inside

    def _inside(self, node: _Function) -> Flow:
        """Return the names from outside that a function's body reads, binds or changes."""
        given = node.args
        self.body([*given.defaults, *filter(None, given.kw_defaults)])
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        body: Sequence[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else node.body
        nodes = [each for statement in body for each in ast.walk(statement)]
        shared = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
        stored = {
            n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        }
        inside = Flow(changes=set(shared))
        own = {argument.arg for argument in every if argument} | (stored - shared)
        _Scope(inside, own | (self.local or set())).body(body)
        _merge(inside)
        return inside

    def _comprehension(self, node: _Comprehension) -> None:
        scope = _Scope(self.flow, set(self.local or ()))
        scope.bound = set(self.bound)
        for generator in node.generators:
            scope.body([generator.iter, generator.target, *generator.ifs])
        scope.body([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])


def _merge(inside: Flow) -> None:
    """Add what the functions inside of a function or class do with names that are not its own."""
    for each in inside.functions.values():
        inside.reads |= each.reads - inside.binds
        inside.changes |= each.changes - inside.binds
    inside.functions.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCell:
    """A code cell and its last run."""

    source: str
    """The current source."""
    when: int | None = None
    """The run's number in the order of all runs in this kernel; None if it did not run in it."""
    ran: str = ""
    """The source that ran."""
    names: frozenset[str] | None = None
    """Variables that the run changed; None if not observed."""
    read: Mapping[str, int] = field(default_factory=dict)
    """Versions of the variables that the run read, from `Lineage.run`."""
    left: Mapping[str, int] = field(default_factory=dict)
    """If the run failed: versions of the variables that it would have changed and did not."""
    shown: bool = False
    """Whether the cell has an execution count, from this kernel or an earlier one."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Why a cell's output no longer fits."""

    cell: int
    """Index of the cell."""
    kind: str
    """"edited", "earlier" (it ran in another kernel), "order" (what it reads was made later),
    "outside" (code outside of the cells changed it), "values" (the cells above would give it other
    values), "hidden" (its source does not show what it reads)."""
    name: str = ""
    """The variable that it reads, if that is the reason."""
    source: int = -1
    """Index of the cell that made or changed the variable, if that is the reason."""
    certain: bool = True
    """False if it is only possible."""


def stale_cells(cells: Sequence[RanCell], outside: Mapping[str, int]) -> Iterator[Stale]:
    """Yield the stale cells in order, each with one reason.

    Args:
        cells: the notebook's code cells in order.
        outside: the last run of code outside of the cells that changed a variable.
    """
    walk = _Walk(cells, outside)
    for at in range(len(cells)):
        if found := walk.step(at):
            yield found


@dataclass(slots=True)
class Lineage:
    """The versions of variables after a series of runs.

    A version is a hash of the code that made the value and of the versions that this code read.
    """

    versions: dict[str, int] = field(default_factory=dict)
    functions: dict[str, Flow] = field(default_factory=dict)

    def run(self, source: str, names: frozenset[str] | None = None) -> dict[str, int]:
        """Add a run; return the versions that it reads. `names` are its observed changes."""
        flow = flow_of(source)
        read = {name: self.versions.get(name, 0) for name in self.used(flow)}
        old = [(name, self.versions.get(name, 0)) for name in sorted(flow.maybe)]
        made = hash((source, *sorted(read.items()), *old))
        for name in (self.changed(flow) | flow.binds if names is None else names) - flow.imports:
            self.versions[name] = made
        self.functions |= flow.functions
        return read

    def done(self, source: str, line: int) -> frozenset[str]:
        """Return the names that a run changed which failed at a line.

        A compound statement that failed counts as a whole.
        """
        try:
            tree = ast.parse(_MAGIC.sub(r"\1pass", source))
            flow = Flow()
            _Scope(flow, None).body(
                [
                    each
                    for each in tree.body
                    if (each.lineno if hasattr(each, "body") else each.end_lineno or 0) < line
                ]
            )
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
        return frozenset(self.changed(flow) | flow.binds)

    def used(self, flow: Flow) -> list[str]:
        """Return the names that a cell reads, also through the functions that it uses."""
        queue = sorted(flow.reads | flow.changes)
        for name in queue:
            inside = self.functions.get(name) or flow.functions.get(name)
            if inside is not None:
                queue += sorted((inside.reads | inside.changes).difference(queue))
        own = flow.binds - flow.reads - flow.changes
        return [name for name in queue if name not in own]

    def changed(self, flow: Flow) -> set[str]:
        """Return the names that a cell changes in place, also through the functions it uses."""
        called = (self.functions[name].changes for name in flow.reads & self.functions.keys())
        return flow.changes.union(*called)


@dataclass(slots=True)
class _Walk:
    """One pass over the cells from the top."""

    cells: Sequence[RanCell]
    outside: Mapping[str, int]
    above: Lineage = field(default_factory=Lineage)
    """The variables as the cells above would make them."""
    makers: dict[str, dict[int, bool]] = field(default_factory=dict)
    """The cells that made or changed each variable; the value is False if that is only possible."""
    stale: dict[int, bool] = field(default_factory=dict)
    """Stale cells by index; the value is True if that is certain, not only possible."""
    unknown: set[str] = field(default_factory=set)
    """Variables of cells that did not run in this kernel."""

    def step(self, at: int) -> Stale | None:
        cell, flow = self.cells[at], flow_of(self.cells[at].source)
        found = self._reason(at, cell, flow)
        if cell.when is None:
            self.unknown |= flow.binds | flow.changes
            self.above.functions |= flow.functions
            return found
        if found is not None:
            self.stale[at] = found.certain
        left = {} if found is not None and found.kind == "edited" else cell.left
        changed = self.above.changed(flow) | ((cell.names or frozenset()) - flow.binds)
        for name in flow.binds - flow.imports - flow.maybe - left.keys():
            self.makers[name] = {at: True}
        for name in (changed | flow.maybe) - left.keys():
            self.makers.setdefault(name, {})[at] = True
        for name in flow.perhaps - changed - flow.binds if cell.names is None else ():
            self.makers.setdefault(name, {}).setdefault(at, False)
        self.unknown -= flow.binds - flow.maybe
        self.above.run(cell.source, cell.names if found is None else None)
        self.above.versions.update(left)
        return found

    def _reason(self, at: int, cell: RanCell, flow: Flow) -> Stale | None:
        if cell.when is None:
            return Stale(at, "earlier") if cell.shown else None
        if cell.ran.strip() != cell.source.strip():
            return Stale(at, "edited")
        used = self.above.used(flow)
        reasons = [*self._order(at, cell.when, used)]
        given = self.above.versions
        reasons += [
            Stale(at, "values", name, certain=False)
            for name in used
            if name not in self.unknown and cell.read.get(name, 0) != given.get(name, 0)
        ]
        if flow.hidden and any(self._newer(each, cell.when) for each in range(at)):
            reasons.append(Stale(at, "hidden", certain=False))
        return min(reasons, key=lambda each: not each.certain, default=None)

    def _order(self, at: int, when: int, used: Sequence[str]) -> Iterator[Stale]:
        for name in used:
            makers = self.makers.get(name, {})
            for maker, certain in makers.items():
                if self._newer(maker, when):
                    sure = certain and self.stale.get(maker, True)
                    yield Stale(at, "order", name, maker, sure)
            last = self.outside.get(name, -1)
            if last > when and all((self.cells[m].when or 0) < last for m in makers):
                yield Stale(at, "outside", name)

    def _newer(self, maker: int, when: int) -> bool:
        ran = self.cells[maker].when
        return maker in self.stale or (ran is not None and ran > when)

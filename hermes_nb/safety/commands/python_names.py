"""What the names and expressions of Python code stand for, as far as plain code shows it."""

from __future__ import annotations

import ast

from hermes_nb.safety.commands.shell_words import HOME, UNKNOWN

_PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath", "os.path.abspath", "str", "os.fspath"})


class Names:
    """What names stand for: dotted paths for modules and functions, text for strings."""

    def __init__(self) -> None:
        self.dotted: dict[str, str] = {}
        self.values: dict[str, ast.expr] = {}
        self._open: set[str] = set()

    def path(self, node: ast.expr) -> str:
        """Return the dotted path of a function, "" if it is none."""
        match node:
            case ast.Name(id=name):
                return self.dotted.get(name, name)
            case ast.Attribute(value=value, attr=name):
                base = self.path(value)
                return f"{base}.{name}" if base else ""
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name))]):
                return f"{self.path(value)}.{name}"
            case ast.Call(func=function):
                return self._module(node) or self.path(function)
            case _:
                return ""

    def _module(self, call: ast.Call) -> str:
        """Return the module that a call imports, "" if it imports none."""
        imports = self.path(call.func) in ("__import__", "importlib.import_module")
        return self.text(call.args[0]) if imports and call.args else ""

    def text(self, node: ast.expr) -> str:
        """Return an expression's text, with `UNKNOWN` for what cannot be known."""
        match node:
            case ast.Constant(value=value):
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value}"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self.text(operand)}"
            case ast.Name(id=name) if name in self.values and name not in self._open:
                return self._variable(name)
            case ast.Call():
                return self._called(node)
            case ast.Subscript(slice=ast.Constant(value="HOME")):
                return HOME
            case ast.Attribute(attr="sep"):
                return "/"
            case _:
                return self._composed(node)

    def _composed(self, node: ast.expr) -> str:
        match node:
            case ast.JoinedStr(values=values) | ast.Tuple(elts=values):
                return "".join(self.text(value) for value in values)
            case ast.FormattedValue(value=value):
                return self.text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left) + self.text(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return joined(self.text(left), self.text(right))
            case _:
                return UNKNOWN

    def _variable(self, name: str) -> str:
        self._open.add(name)
        try:
            return self.text(self.values[name])
        finally:
            self._open.discard(name)

    def _called(self, node: ast.Call) -> str:
        path = self.path(node.func)
        texts = [self.text(argument) for argument in node.args]
        if path == "pathlib.Path.home" or (path.endswith((".get", ".getenv")) and "HOME" in texts):
            return HOME
        if path == "os.path.join":
            return joined(*texts)
        if path in _PATHS and texts:
            return joined(*texts)
        if path == "os.path.expanduser" and texts:
            return HOME + texts[0][1:] if texts[0].startswith("~") else texts[0]
        if isinstance(node.func, ast.Attribute):
            base = self.text(node.func.value)
            if node.func.attr == "expanduser" and base.startswith("~"):
                return HOME + base[1:]
            if node.func.attr in ("resolve", "absolute", "expanduser"):
                return base
            if node.func.attr == "joinpath":
                return joined(base, *texts)
        return UNKNOWN


def names_in(tree: ast.AST) -> Names:
    """Return what the names of a module stand for; the last assignment counts."""
    names = Names()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name.split(".")[0]
                    names.dotted[name] = alias.name if alias.asname else name
            case ast.ImportFrom(module=module, names=aliases):
                for alias in aliases:
                    names.dotted[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names.values[name] = value
                if isinstance(value, ast.Attribute) and (path := names.path(value)):
                    names.dotted[name] = path
            case _:
                pass
    return names


def joined(*texts: str) -> str:
    """Return paths joined; an absolute one starts over."""
    out = ""
    for text in texts:
        out = text if text.startswith("/") or not out else f"{out.rstrip('/')}/{text}"
    return out

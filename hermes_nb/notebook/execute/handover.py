"""Copy variables to another process without running any of their own code here.

The values are pickled, but only code of this module, of the standard types below and of the
libraries in `LIBRARIES` runs for it. Functions and classes of the notebook are sent as their code.
Their objects are sent as their attributes, unless a class has pickling methods of its own. Anything
else becomes a `NotCopied`, which raises an error when the other process uses it.

Types are only compared by identity, and attributes only read with the methods of `type` and
`object`: a metaclass or a property may run code when it is asked for anything else. Code that
replaces parts of an installed library is not detected.
"""

from __future__ import annotations

import abc
import array
import collections
import dataclasses
import datetime
import decimal
import functools
import importlib
import io
import marshal
import pathlib
import pickle
import re
import sys
import time
import types
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec

from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.previews import names_a_secret
from hermes_nb.notebook.shell import Foreign

LIBRARIES = frozenset({"numpy", "pandas", "pyarrow", "polars", "scipy", "sklearn"})
"""Packages whose objects are pickled by their own methods."""
MOST_BYTES = 500_000_000
"""Maximum size of the copied variables."""
MOST_SECONDS = 2.0
"""Maximum CPU time of copying them."""

Reduced = tuple[object, ...]
Namespace = Mapping[str, Foreign]

_NAME = re.compile(r"[^\W\d]\w*")
_DYNAMIC = re.compile(r"\b(?:globals|locals|vars|dir|eval|exec)\s*\(|^\s*%+\s*(?:who|run)", re.M)
"""Code that may use names that it does not contain; it gets all variables."""
_HOOKS = frozenset(
    "__reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__".split()
)
_C_CODE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
_BY_NAME = frozenset(
    "builtin_function_or_method cython_function_or_method fused_cython_function "
    "_ArrayFunctionDispatcher ufunc".split()
)
"""Types of functions that are written in C."""
_VALUES = (str, bytes, int, float, tuple, list, dict, set, frozenset)
"""Builtin types that a class of the notebook may extend."""
_STEPS = 256

_Cached: Foreign = type(functools.lru_cache(len))

_dict_of: Callable[[type], Mapping[str, Foreign]] = type.__dict__["__dict__"].__get__
_mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__bases__"].__get__
_module_type: Foreign = types.ModuleType
_module_dict = _module_type.__dict__["__dict__"].__get__


def _module_of(cls: type) -> str:
    """Return the name of a class's module, or "" if it has none."""
    name = type.__dict__["__module__"].__get__(cls)
    return name if type(name) is str else ""


def _qualname_of(cls: type) -> str:
    name = type.__dict__["__qualname__"].__get__(cls)
    return name if type(name) is str else ""


class TooLargeError(HermesError):
    """The variables are too large to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Pickled variables, one pickle each, for an unpickler that reads them in order."""

    names: dict[str, tuple[int, int]]
    """For each name, in the order of the pickles, where its pickle and its buffers end."""
    head: bytes
    """The pickles."""
    buffers: list[memoryview]
    """The data of large arrays, which the pickles refer to in this order."""
    files: set[str]
    """File names in the code of the notebook's functions."""
    left: dict[str, str]
    """Names with a value that is not copied, or contains one, and its type."""


def hand_over(
    code: str, namespace: Namespace, hidden: Namespace, sent: Collection[str] = ()
) -> Handover:
    """Pickle the variables that `code` can use, except those in `sent`, which were sent before.

    `hidden` contains the shell's own names. Raises `TooLargeError`.
    """
    own, missing = {n: v for n, v in hidden.items() if type(n) is str}, object()
    known = {
        name: value
        for name, value in list(namespace.items())
        if type(name) is str and not name.startswith("__") and own.get(name, missing) is not value
    }
    known = {name: value for name, value in known.items() if name not in sent}
    left: dict[str, str] = {}
    until = time.thread_time() + MOST_SECONDS
    while True:
        pickler = _Pickler(namespace, until)
        try:
            return pickler.run(code, known, left)
        except _Failed as failed:  # its memo refers to data that is not in the pickle
            left[failed.name] = failed.why
            del known[failed.name]


@dataclass(frozen=True, slots=True)
class _Failed(Exception):
    name: str
    why: str


@dataclass(slots=True)
class _Writer:
    """A binary file in memory with a maximum size."""

    file: io.BytesIO = field(default_factory=io.BytesIO)
    buffers: list[memoryview] = field(default_factory=list)
    size: int = 0

    def write(self, data: bytes) -> int:
        self.grow(len(data))
        return self.file.write(data)

    def take(self, buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        self.grow(raw.nbytes)
        self.buffers.append(raw)

    def grow(self, size: int) -> None:
        self.size += size
        if self.size > MOST_BYTES:
            raise TooLargeError(f"they have more than {MOST_BYTES // 10**6} MB")


class _Pickler(pickle.Pickler):
    """Pickles one variable after another with one memo, so that shared objects stay shared."""

    def __init__(self, namespace: Namespace, until: float) -> None:
        self._writer = _Writer()
        super().__init__(self._writer, protocol=5, buffer_callback=self._writer.take)
        self._namespace = namespace
        self._until = until
        self._steps = 0
        self._left = ""
        self._wanted: list[str] = []
        self._files: set[str] = set()
        self._odd: dict[int, tuple[type, bool]] = {}
        self._kinds: dict[int, tuple[type, _Form | None]] = {}
        self._constants: dict[str, dict[int, str]] = {}

    def run(self, code: str, known: Namespace, left: dict[str, str]) -> Handover:
        names = list(known) if _DYNAMIC.search(code) else _NAME.findall(code)
        writer = self._writer
        done: dict[str, tuple[int, int]] = {}
        left = dict(left)
        while names:
            for name in dict.fromkeys(names):
                if name not in known or name in done or name in left:
                    continue
                value = known[name]
                text = type(value) is str or type(value) is bytes
                if text and names_a_secret(name, value):
                    left[name] = "a secret"
                    continue
                self._dump(name, value)
                done[name] = writer.file.tell(), len(writer.buffers)
                if self._left:
                    left[name] = self._left
            names, self._wanted = self._wanted, []
        return Handover(
            names=done,
            files=self._files,
            head=writer.file.getvalue(),
            buffers=writer.buffers,
            left=left,
        )

    def _dump(self, name: str, value: object) -> None:
        self._left = ""
        try:
            self.dump(value)
        except TooLargeError:
            raise
        except Exception as error:  # libraries may raise anything for odd values
            raise _Failed(name, f"{_described(type(value))}: {type(error).__name__}") from None

    def reducer_override(self, value: Foreign) -> Foreign:
        """Return how to pickle a value that is not of a basic builtin type."""
        self._steps += 1
        if not self._steps % _STEPS and time.thread_time() > self._until:
            raise TooLargeError(f"copying them takes more than {MOST_SECONDS:g} s")
        kind = type(value)
        if kind is types.FunctionType and value.__globals__ is globals():
            return NotImplemented  # ours: pickled by name
        odd = self._is_odd(kind) or (issubclass(kind, type) and self._is_odd(value))
        reduced = None if odd else self._reduced(value, kind)
        if reduced is not None:
            return reduced
        if odd:
            self._left = self._left or "object"
            return NotCopied, ("object",)
        if _module_of(kind) not in ("typing", "types"):  # annotations are not worth a note
            self._left = self._left or _described(kind)
        return NotCopied, (_described(kind),)

    def _is_odd(self, kind: type) -> bool:
        """Return whether a class has attributes with names whose comparison may run code."""
        if id(kind) not in self._odd:
            names = (name for each in _mro_of(kind) for name in _dict_of(each))
            self._odd[id(kind)] = kind, any(type(name) is not str for name in names)
        return self._odd[id(kind)][1]

    def _reduced(self, value: Foreign, kind: type) -> Reduced | None:
        if (reducer := _REDUCERS.get(id(kind))) is not None:
            reduced: Reduced | None = reducer(value)
            return reduced
        if kind is types.FunctionType:
            return _by_name(value) or self._function(value)
        if issubclass(kind, type):
            named = _address(_module_of(value), _qualname_of(value), value)
            return named or _builtin_type(value) or _class(value)
        if issubclass(kind, types.ModuleType):
            name = _module_dict(value).get("__name__")
            own = _genuine(name) is not None and sys.modules[name] is value
            return (importlib.import_module, (name,)) if own else None
        if _named_in_c(kind):
            return _by_name(value)
        if _of_library(kind):
            return _by_library(value, kind)
        return self._constant(value, kind) or self._object(value, kind)

    def _function(self, value: types.FunctionType) -> Reduced | None:
        """Return a function of the notebook, or one made by a function of a module, as its code."""
        module: Foreign = ""
        if value.__globals__ is self._namespace:
            self._wanted += _names_in(value.__code__)
            self._files.add(value.__code__.co_filename)
        else:
            module = value.__globals__.get("__name__")
            if _genuine(module) is not value.__globals__:
                return None
        cells = value.__closure__ or ()
        try:
            code = marshal.dumps(value.__code__)
        except ValueError:
            return None
        contents = [_content(cell) for cell in cells]
        own = (value.__defaults__, value.__kwdefaults__, value.__dict__, value.__doc__)
        named = (value.__name__, value.__qualname__)
        state = (*own, *named, list(cells), contents)
        return new_function, (code, cells, module), state, None, None, set_function

    def _constant(self, value: object, kind: type) -> Reduced | None:
        """Return an object that its own module names, such as `dataclasses.MISSING`."""
        module = _module_of(kind)
        found = _genuine(module)
        if found is None:
            return None
        if module not in self._constants:
            self._constants[module] = {id(each): name for name, each in found.items()}
        name = self._constants[module].get(id(value))
        return (attribute, (module, name)) if name else None

    def _object(self, value: Foreign, kind: type) -> Reduced | None:
        """Return an object as its attributes, if its classes have no pickling methods."""
        if id(kind) not in self._kinds:
            self._kinds[id(kind)] = (kind, _form(kind))
        form = self._kinds[id(kind)][1]
        if form is None:
            return None
        state = dict(_attributes(value))
        for name, slot in form.slots.items():
            try:
                state[name] = slot.__get__(value)
            except AttributeError:
                continue  # an empty slot
        content = () if form.base is object else (_content_of(value, form.base),)
        return new_object, (kind, form.base, *content), state, None, None, set_object


@dataclass(frozen=True, slots=True)
class _Form:
    """The parts of an object's state that are not in its `__dict__`."""

    base: type
    """The builtin type that it extends."""
    slots: Mapping[str, types.MemberDescriptorType]
    """Its slots."""


def _form(kind: type) -> _Form | None:
    """Return the form of a class's objects; None if only its own code can read their state."""
    if _plain_metaclass(kind) is None:
        return None
    base: type = object
    slots: dict[str, types.MemberDescriptorType] = {}
    for each in _mro_of(kind)[:-1]:
        if any(each is known for known in _VALUES):
            base = each
            continue
        for name, member in list(_dict_of(each).items()):
            if type(member) is types.MemberDescriptorType:
                slots.setdefault(name, member)
            elif _of_c(name, member) or (name in _HOOKS and not _harmless(each, member)):
                return None
    return _Form(base, slots)


def _described(kind: type) -> str:
    """Return a type's name, with its package unless it is built in or from the notebook."""
    package, name = _module_of(kind).partition(".")[0], _qualname_of(kind)
    shown = name[:80] or "object"
    return shown if package in ("", "builtins", "__main__") else f"{package}.{shown}"


def _builtin_type(cls: type) -> Reduced | None:
    """Return a type that only the module `types` names."""
    found = (name for name, each in vars(types).items() if each is cls)
    return next(((attribute, ("types", name)) for name in found), None)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from _names_in(constant)


def _content(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _genuine(name: object) -> dict[str, Foreign] | None:
    """Return the content of an imported module, or None if there is none of this name."""
    if type(name) is not str or name == "__main__":
        return None
    module = sys.modules.get(name)
    if module is None or not issubclass(type(module), types.ModuleType):
        return None
    content: dict[str, Foreign] = _module_dict(module)
    spec = content.get("__spec__")
    imported = type(spec) is ModuleSpec and type(spec.name) is str and spec.name == name
    return content if imported else None


def _address(module: object, qualname: object, value: object) -> Reduced | None:
    """Return a value by its module and name, or None if it is not what they refer to."""
    place: Mapping[str, Foreign] | None = _genuine(module)
    if place is None or type(qualname) is not str:
        return None
    found: Foreign = None
    for name in qualname.split("."):
        found = place.get(name)
        place = _dict_of(found) if issubclass(type(found), type) else {}
    return (attribute, (module, qualname)) if found is value else None


def _by_name(value: Foreign) -> Reduced | None:
    """Return a function by its module and name. Its type is known, so reading them is harmless.

    They may be objects of the notebook, so their truth value is never evaluated.
    """
    module = getattr(value, "__module__", None)
    module = "numpy" if module is None else module  # ufuncs have none
    name = getattr(value, "__qualname__", None)
    name = value.__name__ if name is None else name
    named = _address(module, name, value)
    if named is None and type(value) is types.BuiltinFunctionType:
        named = _address(getattr(value.__self__, "__name__", None), value.__name__, value)
    return named or _address("scipy.special", name, value)


def _named_in_c(kind: type) -> bool:
    """Return whether a type is one of those in `_BY_NAME` and has no Python code."""
    if _qualname_of(kind) not in _BY_NAME or any(each is not object for each in _mro_of(kind)[1:]):
        return False
    if _of_library(kind):
        return True
    plain = (*_C_CODE, str, types.NoneType)
    return all(any(type(value) is each for each in plain) for value in _dict_of(kind).values())


def _of_library(kind: type) -> bool:
    module = _module_of(kind)
    if module.partition(".")[0] not in LIBRARIES:
        return False
    if module.startswith("polars") and _qualname_of(kind) not in ("DataFrame", "Series"):
        return False  # lazy frames pickle functions in them on their own
    return _address(module, _qualname_of(kind), kind) is not None


def _by_library(value: Foreign, kind: Foreign) -> Reduced | None:
    """Return how the library itself pickles its object."""
    if _shadows(value, kind):
        return None
    if (
        type(kind) is type
        and _module_of(kind) == "polars.series.series"
        and "Object" in repr(value.dtype)
    ):
        return None  # would pickle the Python objects in it on its own
    try:
        reduced = kind.__reduce_ex__(value, 5)
    except TooLargeError:
        raise
    except Exception:  # objects that refuse may raise anything
        return None
    if type(reduced) is str:
        module = _module_of(kind)
        return _address(module, reduced, value) or _address(
            module.partition(".")[0], reduced, value
        )
    return reduced if type(reduced) is tuple else None


def _shadows(value: object, kind: type) -> bool:
    """Return whether an object's attributes replace methods of its class."""
    mine = _attributes(value)
    classes = [_dict_of(each) for each in _mro_of(kind)]
    return any(
        type(name) is not str or any(callable(each.get(name)) for each in classes) for name in mine
    )


def _attributes(value: object) -> dict[str, Foreign]:
    """Return an object's attributes. An override by its class is not consulted."""
    for each in _mro_of(type(value)):
        own = _dict_of(each).get("__dict__")
        if type(own) is types.GetSetDescriptorType:
            found = own.__get__(value)
            return found if type(found) is dict else {}
    return {}


def _of_c(name: str, member: object) -> bool:
    """Return whether a class attribute shows that objects have a state that only C code reads."""
    if name in ("__dict__", "__weakref__") and type(member) is types.GetSetDescriptorType:
        return False
    return any(type(member) is each for each in _C_CODE)


def _harmless(cls: type, hook: object) -> bool:
    """Return whether the attributes say the same as a pickling method.

    This holds for the methods of `dataclass` and `namedtuple`, and of libraries, which add their
    version.
    """
    if type(hook) is not types.FunctionType:
        return _of_library(cls)
    made = any(hook.__globals__ is vars(each) for each in (dataclasses, collections))
    return made or _of_library(cls)


def _content_of(value: Foreign, base: Foreign) -> object:
    """Return the content of an object of a subclass of a builtin type."""
    if base in (tuple, str, bytes):
        return base.__getitem__(value, slice(None))
    if base in (int, float):
        return base.__pos__(value)
    return list(dict.items(value)) if base is dict else base.copy(value)


def _plain_metaclass(cls: type) -> type | None:
    """Return a class's metaclass if it is one of Python's usual ones."""
    return next((each for each in (type, abc.ABCMeta) if type(cls) is each), None)


def _class(cls: type) -> Reduced | None:
    """Return a class of the notebook as its attributes."""
    metaclass = _plain_metaclass(cls)
    if metaclass is None or _module_of(cls) != "__main__":
        return None
    own, name_ = _dict_of(cls), str.__str__(cls.__name__)
    fields, bases = own.get("_fields"), _bases_of(cls)
    if type(fields) is tuple and len(bases) == 1 and bases[0] is tuple:
        return new_namedtuple, (name_, fields, own.get("_field_defaults"))
    state: dict[str, Foreign] = {}
    for name, member in own.items():
        skipped = name in ("__dict__", "__weakref__", "_abc_impl")
        if not skipped and type(member) is not types.MemberDescriptorType:
            state[name] = member
    early = {name: state.pop(name) for name in ("__slots__", "__class__") if name in state}
    named = {"__module__": "__main__", "__qualname__": _qualname_of(cls)}
    made = (metaclass, name_, bases, named | early)
    return new_class, made, state, None, None, set_class


def _ordered(value: Foreign) -> Reduced | None:
    kinds = (str, int, float, bytes)
    plain = all(any(type(key) is each for each in kinds) for key in dict.keys(value))
    if _attributes(value) or not plain:  # would compare its keys
        return None
    return collections.OrderedDict, (list(collections.OrderedDict.items(value)),)


def _counter(value: Foreign) -> Reduced | None:
    if _attributes(value):
        return None
    return new_object, (collections.Counter, dict, list(dict.items(value)))


def _empty(value: object) -> Reduced | None:
    name = "_EMPTY_METADATA"
    return (attribute, ("dataclasses", name)) if value is vars(dataclasses).get(name) else None


_REDUCERS: dict[int, Callable[[Foreign], Foreign]] = {
    id(kind): reducer
    for kind, reducer in (
        (complex, lambda v: (complex, (v.real, v.imag))),
        (range, lambda v: (range, (v.start, v.stop, v.step))),
        (slice, lambda v: (slice, (v.start, v.stop, v.step))),
        (type(...), lambda _: (attribute, ("builtins", "Ellipsis"))),
        (type(NotImplemented), lambda _: (attribute, ("builtins", "NotImplemented"))),
        (datetime.date, lambda v: v.__reduce__()),
        (datetime.datetime, lambda v: v.__reduce_ex__(5)),
        (datetime.time, lambda v: v.__reduce_ex__(5)),
        (datetime.timedelta, lambda v: v.__reduce__()),
        (datetime.timezone, lambda v: (datetime.timezone, v.__getinitargs__())),
        (zoneinfo.ZoneInfo, lambda v: (zoneinfo.ZoneInfo, (v.key,))),
        (decimal.Decimal, lambda v: (decimal.Decimal, (str(v),))),
        (pathlib.PosixPath, lambda v: (pathlib.Path, (str(v),))),
        (pathlib.WindowsPath, lambda v: (pathlib.Path, (str(v),))),
        (re.Pattern, lambda v: (re.compile, (v.pattern, v.flags))),
        (array.array, lambda v: (array.array, (v.typecode, v.tolist()))),
        (collections.deque, lambda v: (collections.deque, (list(v), v.maxlen))),
        (collections.OrderedDict, _ordered),
        (collections.Counter, _counter),
        (
            collections.defaultdict,
            lambda v: (collections.defaultdict, (v.default_factory, list(dict.items(v)))),
        ),
        (types.SimpleNamespace, lambda v: (types.SimpleNamespace, (), dict(_attributes(v)))),
        (functools.partial, functools.partial.__reduce__),
        (types.MethodType, lambda v: (types.MethodType, (v.__func__, v.__self__))),
        (staticmethod, lambda v: (staticmethod, (v.__func__,))),
        (classmethod, lambda v: (classmethod, (v.__func__,))),
        (property, lambda v: (property, (v.fget, v.fset, v.fdel, v.__doc__))),
        (types.CellType, lambda _: (types.CellType, ())),
        (types.MappingProxyType, _empty),
        (
            _Cached,
            lambda v: (new_cached, (_attributes(v).get("__wrapped__"), _Cached.cache_info(v)[2])),
        ),
    )
}
"""Reducers by the id of the exact type, because a hash of a type may run code."""


# The functions below run in the other process, when it reads the pickles.

globals_: dict[str, Foreign] = {}
"""The namespace of the notebook's functions there."""


class NotCopied:
    """Takes the place of a value that was not copied."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        return f"<not in the copy: {self._kind}>"

    def __getattr__(self, name: str) -> object:
        """Raise an error that names the type."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInCopyError(self._kind)

    def __call__(self, *_args: object, **_options: object) -> object:
        raise NotInCopyError(self._kind)

    __getitem__ = __iter__ = __len__ = __bool__ = __add__ = __enter__ = __call__


class NotInCopyError(RuntimeError):
    """Code used a value that was not copied."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"this {kind} is not in the copy; use run_python for code that needs it")


def attribute(module: str, qualname: str) -> object:
    """Return an attribute of a module, which is imported."""
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def new_function(code: bytes, cells: tuple[types.CellType, ...], module: str) -> Foreign:
    """Return a function without its defaults and attributes, which may refer to it."""
    where = vars(importlib.import_module(module)) if module else globals_
    return types.FunctionType(marshal.loads(code), where, closure=cells or None)


def set_function(function: types.FunctionType, state: Sequence[Foreign]) -> None:
    """Set what `new_function` left out."""
    defaults, keywords, attributes, doc, name, qualname, cells, contents = state
    function.__defaults__, function.__kwdefaults__ = defaults, keywords
    function.__dict__.update(attributes)
    function.__doc__, function.__name__, function.__qualname__ = doc, name, qualname
    for cell, content in zip(cells, contents, strict=True):
        if content:
            cell.cell_contents = content[0]


def new_cached(function: Callable[..., object], size: int | None) -> object:
    """Return a function that caches its results."""
    return functools.lru_cache(size)(function)


def new_namedtuple(name: str, fields: tuple[str, ...], defaults: Mapping[str, object]) -> type:
    """Return a class made by `namedtuple`."""
    return collections.namedtuple(name, fields, defaults=defaults.values(), module="__main__")


def new_class(
    metaclass: type[type], name: str, bases: tuple[type, ...], content: dict[str, object]
) -> type:
    """Return a class without its attributes, which may refer to it."""
    return metaclass(name, bases, content)


def set_class(cls: type, state: Mapping[str, object]) -> None:
    """Set a class's attributes."""
    for name, value in state.items():
        type.__setattr__(cls, name, value)


def new_object(kind: type, base: Foreign, *content: Foreign) -> object:
    """Return an object without its attributes."""
    if base not in (list, dict, set):
        return base.__new__(kind, *content)
    made = base.__new__(kind)
    (list.extend if base is list else base.update)(made, *content)
    return made


def set_object(made: object, state: Mapping[str, object]) -> None:
    """Set an object's attributes and slots, without its class's own methods."""
    for name, value in state.items():
        slot = next((vars(c)[name] for c in type(made).__mro__ if name in vars(c)), None)
        if type(slot) is types.MemberDescriptorType:
            slot.__set__(made, value)
        else:
            made.__dict__[name] = value


def take_over(
    names: Mapping[str, Sequence[int]],
    head: bytes,
    buffers: Sequence[bytearray],
    into: dict[str, Foreign],
) -> dict[str, str]:
    """Bind the variables of a handover. Return those that failed, and why."""
    globals()["globals_"] = into
    file, failed = io.BytesIO(head), {}
    unpickler = pickle.Unpickler(file, buffers=buffers)  # confined
    for name, (end, used) in names.items():
        try:
            into[name] = unpickler.load()
        except Exception as error:  # classes of the notebook may raise anything
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            known: Foreign = unpickler
            file.seek(end)
            unpickler = pickle.Unpickler(file, buffers=buffers[used:])
            setattr(unpickler, "memo", known.memo)  # noqa: B010 - missing in the type stubs
    return failed

"""How the state of one object is saved, compared and restored, by its type.

A state is shallow: it refers to the objects inside. Only methods of built-in and library classes
are called, on the value itself; a class's own methods, properties, metaclass, `__eq__` and
`__hash__` never run. The order of this module: how classes are read, kinds of built-in types, how
the kind of a class is found. Libraries are in `library_state`.
"""

from __future__ import annotations

import _random
import functools
import gc
import io
import itertools
import operator
import types
import weakref
from array import array
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hermes_nb.notebook.shell import Foreign


class CannotKeep(Exception):
    """The state of an object cannot be saved; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How objects of a type are saved and restored."""

    save: Callable[[Foreign], Foreign]
    """Return the value's own state."""
    same: Callable[[Foreign, Foreign], bool]
    """Return whether a value still has a state."""
    restore: Callable[[Foreign, Foreign], None]
    """Give a value a state."""
    children: Callable[[Foreign, Foreign], Iterable[object]]
    """Return the objects in a value and its state that may change themselves."""
    size: Callable[[Foreign], int] = lambda _: 0
    """Return the bytes that `save` copies."""
    lost: str = ""
    """What cannot be kept of a value, or "" if everything can; its children are still saved."""
    skip: frozenset[str] = frozenset()
    """Attributes that `save` already covers."""
    shown: Callable[[Foreign], object] = lambda state: state
    """Return a plain value that stands for a state, for display."""
    whole: bool = False
    """Whether `save` also covers the C fields of the subclasses that its library defines."""


# -- reading classes without running their code --------------------------------------------------
_MRO, _DICT = type.__dict__["__mro__"], type.__dict__["__dict__"]
_SIZE, _DICT_AT = type.__dict__["__basicsize__"], type.__dict__["__dictoffset__"]
_WEAK_AT = type.__dict__["__weakrefoffset__"]
_CLASS = object.__dict__["__class__"]
_WORD = 8


def bases_of(kind: type) -> tuple[type, ...]:
    """Return a class and its bases."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def members_of(kind: type) -> Mapping[str, Foreign]:
    """Return what a class itself defines."""
    found: Mapping[str, Foreign] = _DICT.__get__(kind)
    return found


def module_of(kind: type) -> str:
    """Return the module that defines a class."""
    return str(type.__getattribute__(kind, "__module__"))


def called(kind: type) -> str:
    """Return a class's name with its module."""
    name = str(type.__getattribute__(kind, "__qualname__"))
    module = module_of(kind)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def named_type(value: object) -> str:
    """Return the name of a value's type with its module."""
    return called(type(value))


def attributes_of(value: Foreign) -> dict[str, Foreign] | None:
    """Return an object's attributes as its own dict; None if it has none."""
    reader = _dict_reader(type(value))
    return None if reader is None else reader(value)


def _dict_reader(kind: type) -> Callable[[Foreign], dict[str, Foreign]] | None:
    for base in bases_of(kind):
        found: Foreign = members_of(base).get("__dict__")
        if type(found) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            reader: Callable[[Foreign], dict[str, Foreign]] = found.__get__
            return reader
    return None


def identical(one: Iterable[object], two: Iterable[object]) -> bool:
    """Return whether two sequences consist of the same objects."""
    return all(itertools.starmap(operator.is_, itertools.zip_longest(one, two, fillvalue=_END)))


_END = object()


def same_dict(one: Mapping[Foreign, object], two: Mapping[Foreign, object]) -> bool:
    """Return whether two plain dicts have the same keys and values, in the same order."""
    return len(one) == len(two) and identical(one, two) and identical(one.values(), two.values())


# -- kinds of built-in types ---------------------------------------------------------------------
_PLAIN: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(type(NotImplemented), types.CodeType, types.MethodDescriptorType, types.MappingProxyType),
    *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.ClassMethodDescriptorType, types.GenericAlias, type(int | str)),
)
PLAIN = frozenset(map(id, _PLAIN))
"""Ids of types whose objects never change. Ids, because a class may define its own hash."""
MOST_ITEMS = 2_000_000
"""Maximum items of a container or object column whose items are looked at."""


def changeable(values: Iterable[object]) -> list[object]:
    """Return the values that are mutable; fast even for a million numbers."""
    found = list(values)
    if len(found) > MOST_ITEMS:
        raise CannotKeep(f"{len(found):,} items")
    if PLAIN.issuperset(map(id, map(type, found))):
        return []
    return [value for value in found if id(type(value)) not in PLAIN]


def _nothing(*_: object) -> None:
    return None


def _always(*_: object) -> bool:
    return True


def _items(_: object, state: Iterable[object]) -> list[object]:
    return changeable(state)


def _referents(value: object, _: object) -> list[object]:
    return gc.get_referents(value)


CONSTANT = Kind(_nothing, _always, _nothing, lambda *_: ())
"""Objects that never change and lead nowhere."""
THROUGH = Kind(_nothing, _always, _nothing, _referents)
"""Objects that never change, but refer to some that may."""

_LIST = Kind(
    list.copy,
    lambda v, s: len(s) == list.__len__(v) and identical(list.__iter__(v), s),
    lambda v, s: list.__setitem__(v, slice(None), s),
    _items,
)


def _deque_restore(value: deque[object], state: list[object]) -> None:
    deque.clear(value)
    deque.extend(value, state)


_DEQUE = Kind(
    lambda v: [*deque.__iter__(v)],
    lambda v, s: deque.__len__(v) == len(s) and identical(deque.__iter__(v), s),
    _deque_restore,
    _items,
)


def _set_restore(value: set[object], state: frozenset[object]) -> None:
    set.clear(value)
    set.update(value, state)  # stored hashes are used


_SET = Kind(
    frozenset,
    lambda v, s: set(map(id, set.__iter__(v))) == set(map(id, s)),
    _set_restore,
    _items,
)


def _dict_save(value: dict[Foreign, Foreign]) -> dict[Foreign, Foreign]:
    """Return a plain copy that uses the stored hashes."""
    own = next(base for base in bases_of(type(value)) if "__iter__" in members_of(base))
    if own is dict:  # else it would call the class's `keys`
        return dict.copy(value)
    ordered = own is OrderedDict
    keys = [*(OrderedDict if ordered else dict).__iter__(value)]
    if not PLAIN.issuperset(map(id, map(type, keys))):
        raise CannotKeep("a dict with a class and keys of your own")
    return {key: dict.__getitem__(value, key) for key in keys}


def _dict_same(value: Foreign, state: dict[Foreign, Foreign]) -> bool:
    ordered = issubclass(type(value), OrderedDict)
    keys = OrderedDict.__iter__(value) if ordered else dict.__iter__(value)
    if dict.__len__(value) != len(state) or not identical(keys, state):
        return False
    values = dict.values(value)
    return set(map(id, values)) == set(map(id, state.values())) and (
        all(dict.__getitem__(value, key) is item for key, item in state.items())
        if ordered
        else identical(values, state.values())
    )


def _dict_restore(value: Foreign, state: dict[Foreign, Foreign]) -> None:
    if issubclass(type(value), OrderedDict):
        OrderedDict.clear(value)
        for key, item in state.items():
            OrderedDict.__setitem__(value, key, item)
    else:
        dict.clear(value)
        dict.update(value, state)


DICT = Kind(
    _dict_save, _dict_same, _dict_restore, lambda _, s: [*changeable(s), *changeable(s.values())]
)


def _bytes_restore(value: Foreign, state: bytes) -> None:
    if issubclass(type(value), array):
        array.__delitem__(value, slice(None))
        array.frombytes(value, state)
    else:
        bytearray.__setitem__(value, slice(None), state)


_BYTES = Kind(
    lambda v: memoryview(v).tobytes(),
    lambda v, s: memoryview(v).tobytes() == s,
    _bytes_restore,
    lambda *_: (),
    lambda v: memoryview(v).nbytes,
)


def _cell_save(value: types.CellType) -> tuple[object, ...]:
    try:
        return (value.cell_contents,)
    except ValueError:  # empty
        return ()


def _cell_restore(value: types.CellType, state: tuple[object, ...]) -> None:
    if state:
        value.cell_contents = state[0]
    else:
        del value.cell_contents


_CELL = Kind(_cell_save, lambda v, s: identical(_cell_save(v), s), _cell_restore, _items)

_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


def _function_save(value: types.FunctionType) -> tuple[object, ...]:
    return tuple(getattr(value, part) for part in _FUNCTION_PARTS)


def _function_restore(value: types.FunctionType, state: tuple[object, ...]) -> None:
    for part, was in zip(_FUNCTION_PARTS, state, strict=True):
        setattr(value, part, was)


_FUNCTION = Kind(
    _function_save,
    lambda v, s: identical(_function_save(v), s),
    _function_restore,
    lambda v, s: changeable([*(v.__closure__ or ()), *s[1:]]),
)

_LAZY = frozenset(
    "__dict__ __weakref__ __doc__ __annotations_cache__ __annotations__ __annotate_func__"
    " __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl __parameters__".split()
)
"""Members of a class that Python adds by itself."""


def _class_save(value: type) -> tuple[tuple[type, ...], dict[str, object]]:
    members = {k: v for k, v in members_of(value).items() if k not in _LAZY}
    return type.__dict__["__bases__"].__get__(value), members


def _class_same(value: type, state: tuple[tuple[type, ...], dict[str, object]]) -> bool:
    bases, members = _class_save(value)
    return identical(bases, state[0]) and same_dict(members, state[1])


def _class_restore(value: type, state: tuple[tuple[type, ...], dict[str, object]]) -> None:
    (bases, now), (old, members) = _class_save(value), state
    if not identical(bases, old):
        type.__dict__["__bases__"].__set__(value, old)
    changed = {n for n in {**now, **members} if now.get(n, _END) is not members.get(n, _END)}
    for name in changed:
        if any(name in members_of(base) for base in bases_of(type(value))[:-2]):
            raise CannotKeep(f"{called(value)}.{name}, which its metaclass defines")
        if name in members:
            type.__setattr__(value, name, members[name])
        else:
            type.__delattr__(value, name)


CLASS = Kind(
    _class_save, _class_same, _class_restore, lambda _, s: changeable([*s[0], *s[1].values()])
)
_ERROR = Kind(
    BaseException.args.__get__,  # type: ignore[attr-defined]
    lambda v, s: BaseException.args.__get__(v) is s,  # type: ignore[attr-defined]
    BaseException.args.__set__,  # type: ignore[attr-defined]
    _items,
)
_RANDOM = Kind(
    _random.Random.getstate,
    lambda v, s: _random.Random.getstate(v) == s,
    _random.Random.setstate,
    lambda *_: (),
)


def _text_save(value: Foreign) -> tuple[object, int]:
    kind = io.BytesIO if issubclass(type(value), io.BytesIO) else io.StringIO
    if kind.closed.__get__(value):
        raise CannotKeep("a closed file")
    return kind.getvalue(value), kind.tell(value)


def _text_restore(value: Foreign, state: tuple[Foreign, int]) -> None:
    kind = io.BytesIO if issubclass(type(value), io.BytesIO) else io.StringIO
    kind.seek(value, 0)
    kind.truncate(value)
    kind.write(value, state[0])
    kind.seek(value, state[1])


_TEXT = Kind(_text_save, lambda v, s: _text_save(v) == s, _text_restore, lambda *_: ())

_CACHED = type(functools.lru_cache(len))
_CACHE = Kind(
    _CACHED.cache_info,
    lambda v, s: _CACHED.cache_info(v) == s,
    lambda v, _: _CACHED.cache_clear(v),
    _referents,
)


_TUPLE_GETTER = type(vars(namedtuple("_Pair", "one"))["one"])


def _lost(what: str) -> Kind:
    return Kind(_nothing, _always, _nothing, _referents, lost=what)


_THROUGH: tuple[type, ...] = (
    *(tuple, frozenset, property, staticmethod, classmethod, functools.partial),
    *(types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, memoryview, super),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
BUILT_IN: dict[int, Kind] = {
    **{id(kind): CONSTANT for kind in _PLAIN},
    **{id(kind): _BYTES for kind in (bytearray, array)},
    **{id(kind): _TEXT for kind in (io.StringIO, io.BytesIO)},
    **{id(kind): THROUGH for kind in _THROUGH},
    **{
        id(kind): _lost("a generator or coroutine, which cannot be set back")
        for kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
    },
    id(list): _LIST,
    id(dict): DICT,
    id(OrderedDict): replace(DICT, whole=True),
    id(_TUPLE_GETTER): CONSTANT,
    id(set): _SET,
    id(deque): _DEQUE,
    id(types.CellType): _CELL,
    id(types.FunctionType): _FUNCTION,
    id(type): CLASS,
    id(BaseException): _ERROR,
    id(_random.Random): _RANDOM,
    id(_CACHED): _CACHE,
    id(weakref.ref): Kind(
        _nothing, _always, _nothing, lambda v, _: changeable([weakref.ref.__call__(v)])
    ),
    id(functools.cached_property): replace(CONSTANT, skip=frozenset({"lock"})),
    id(object): CONSTANT,
}
"""Kinds by the id of a class; they hold for its subclasses as well."""


# -- the kind of a class -------------------------------------------------------------------------
OPAQUE = frozenset(
    "IPython ipykernel traitlets ipywidgets comm zmq tornado hermes_nb sqlite3 _sqlite3 duckdb"
    " _duckdb sqlalchemy psycopg pymongo redis _thread threading socket _socket ssl _ssl selectors"
    " multiprocessing asyncio _asyncio subprocess concurrent queue _queue _io tempfile ctypes"
    " _ctypes mmap logging torch tensorflow jax cupy requests httpx urllib3 aiohttp dask pyspark"
    " ray distributed contextvars _contextvars xgboost lightgbm catboost PIL cv2 h5py netCDF4"
    " tkinter _tkinter select".split()
)
"""Packages whose objects have state elsewhere: in C, a file, a device, a server or a thread."""
IMMUTABLE = frozenset(
    "datetime _datetime decimal _decimal fractions uuid pathlib re _sre zoneinfo ipaddress operator"
    " _operator typing enum inspect numpy pandas pyarrow polars matplotlib scipy sklearn"
    " statsmodels contourpy kiwisolver pybind11_builtins _abc abc builtins types functools"
    " _functools".split()
)
"""Packages whose C objects are replaced rather than changed, unless they are iterators."""
TRANSIENT = frozenset({"_item_cache", "_cache", "_stale_viewlims", "_parents"})
"""Attributes of library objects that are caches or weak references."""


def package_of(kind: type) -> str:
    """Return the top-level package that defines a class."""
    return module_of(kind).partition(".")[0]


def kind_of(kind: type, known: Mapping[int, Kind]) -> Kind:
    """Return how objects of a class are saved; `known` are kinds by id. Raises `CannotKeep`."""
    bases = bases_of(kind)
    solid = next(base for base in bases if id(base) in known)
    added = itertools.takewhile(lambda base: base is not solid, bases)
    if any(package_of(base) in OPAQUE for base in added):
        raise CannotKeep(called(kind))
    own = known[id(solid)]
    if kind is solid and (solid is type or not _DICT_AT.__get__(kind)):
        return own
    if own.whole or not _hidden_state(kind, solid):
        return _with_attributes(kind, solid, own)
    if any("__next__" in members_of(base) for base in bases):
        return _lost("an iterator, which cannot be set back")
    if package_of(kind) not in IMMUTABLE:
        raise CannotKeep(called(kind))
    return THROUGH if package_of(kind) in ("builtins", "types", "functools") else CONSTANT


def _slots_of(kind: type, solid: type) -> list[Foreign]:
    """Return the descriptors of the slots that a class adds to a known base."""
    inner = frozenset(map(id, bases_of(solid)))
    return [
        each
        for base in bases_of(kind)
        if id(base) not in inner
        for each in members_of(base).values()
        if type(each) is types.MemberDescriptorType
    ]


def _hidden_state(kind: type, solid: type) -> bool:
    """Return whether objects of a class have C fields that are neither attributes nor slots."""
    extra = (
        len(_slots_of(kind, solid)) + (_DICT_AT.__get__(kind) > 0) + (_WEAK_AT.__get__(kind) > 0)
    )
    return bool(_SIZE.__get__(kind) - _SIZE.__get__(solid) > _WORD * extra)


def _with_attributes(kind: type, solid: type, own: Kind) -> Kind:
    """Return a kind that adds the class, the attributes and the slots of objects to `own`."""
    has_dict = bool(_DICT_AT.__get__(kind)) and not issubclass(solid, type)
    slots = _slots_of(kind, solid)
    skip = own.skip if module_of(kind) == "__main__" else own.skip | TRANSIENT

    reader = _dict_reader(kind) if has_dict else lambda _: {}
    if reader is None:
        raise CannotKeep(f"{called(kind)}, which hides its attributes")

    def attributes(value: object) -> dict[str, object]:
        found = reader(value)
        if not skip:
            return dict.copy(found)
        return {k: v for k, v in found.items() if k not in skip and type(v) is not itertools.count}

    def save(value: object) -> tuple[Foreign, ...]:
        inside = own.save(value)
        return type(value), inside, attributes(value), [_slot(each, value) for each in slots]

    def same(value: object, state: tuple[Foreign, ...]) -> bool:
        return (
            type(value) is state[0]
            and same_dict(attributes(value), state[2])
            and all(map(equal, (_slot(each, value) for each in slots), state[3]))
            and own.same(value, state[1])
        )

    def restore(value: object, state: tuple[Foreign, ...]) -> None:
        if type(value) is not state[0]:
            _CLASS.__set__(value, state[0])
        own.restore(value, state[1])
        now = reader(value)
        for name in attributes(value):
            del now[name]
        dict.update(now, state[2])
        _restore_slots(value, slots, state[3])

    def children(value: object, state: tuple[Foreign, ...]) -> list[object]:
        return [*own.children(value, state[1]), *state[2].values(), *state[3], state[0]]

    def shown(state: tuple[Foreign, ...]) -> object:
        return own.shown(state[1]) if own is not CONSTANT else state[2]

    return Kind(save, same, restore, children, own.size, own.lost, shown=shown)


def equal(one: object, two: object) -> bool:
    """Return whether two values are the same object or equal plain values."""
    if one is two:
        return True
    if type(one) is not type(two) or id(type(one)) not in PLAIN:
        return False
    return repr(one) == repr(two) if type(one) in (float, complex) else one == two


def _restore_slots(value: object, slots: list[Foreign], state: list[object]) -> None:
    for each, was in zip(slots, state, strict=True):
        if equal(_slot(each, value), was):
            continue
        if was is _END:
            each.__delete__(value)
        else:
            each.__set__(value, was)


def _slot(descriptor: Foreign, value: object) -> object:
    try:
        return descriptor.__get__(value)
    except AttributeError:  # never set
        return _END

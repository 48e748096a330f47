"""Save and restore numpy, pandas and polars objects, and library settings outside of variables.

Nothing is imported: a library that is not loaded has no objects. pandas 3 copies on write, so the
state of a table is a shallow copy of its blocks. Earlier versions copy, and so do arrays. This
reads pandas' `_mgr` and polars' `_df`; each version that we support needs its tests.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hermes_nb.notebook.execute.state import (
    CONSTANT,
    PLAIN,
    CannotKeep,
    Kind,
    attributes_of,
    bases_of,
    called,
    changeable,
    identical,
    package_of,
)
from hermes_nb.notebook.shell import Foreign

_STEP = 1 << 20
"""Words compared at once: they stay in the processor's cache."""


def library_kinds() -> dict[int, Kind]:
    """Return the `Kind` of each class that a loaded library defines, by class id."""
    found: dict[int, Kind] = {}
    for (module, name), kind in _LIBRARIES.items():
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type):
            found[id(known)] = kind
    return found


# -- numpy ---------------------------------------------------------------------------------------
def _array(value: Foreign) -> Foreign:
    """Return a plain array over the same memory."""
    numpy: Foreign = sys.modules["numpy"]
    return numpy.ndarray.view(value, numpy.ndarray)


def owner_of(value: Foreign) -> Foreign:
    """Return the array that owns the memory of an array."""
    numpy: Foreign = sys.modules["numpy"]
    base = numpy.ndarray.base
    while isinstance(inner := base.__get__(value), numpy.ndarray):
        value = inner
    return value


def _header(value: Foreign) -> tuple[object, ...]:
    plain = _array(value)
    return plain.shape, plain.strides, plain.dtype, plain.flags.writeable


def _array_save(value: Foreign) -> tuple[Foreign, Foreign]:
    plain = _array(value)
    if plain.dtype.hasobject and plain.dtype != object:
        raise CannotKeep("an array of records with objects")
    if owner_of(value) is not value:
        return _header(value), None
    return _header(value), plain.copy(order="K")


def _array_same(value: Foreign, state: tuple[Foreign, Foreign]) -> bool:
    header, content = state
    return _header(value) == header and (content is None or same_array(_array(value), content))


def same_array(now: Foreign, was: Foreign) -> bool:
    """Return whether two plain arrays hold the same bytes, or the same objects."""
    if (now.shape, now.dtype) != (was.shape, was.dtype):
        return False
    if now.dtype == object:
        return identical(now.ravel().tolist(), was.ravel().tolist())
    if not (now.flags.c_contiguous and was.flags.c_contiguous):
        return bool(now.tobytes() == was.tobytes())
    one, two = now.reshape(-1).view("u1"), was.reshape(-1).view("u1")
    whole = len(one) // 8 * 8
    first, second = one[:whole].view("u8"), two[:whole].view("u8")
    pieces = (slice(at, at + _STEP) for at in range(0, len(first), _STEP))
    ends = bool((one[whole:] == two[whole:]).all())
    return ends and all(bool((first[piece] == second[piece]).all()) for piece in pieces)


def _array_restore(value: Foreign, state: tuple[Foreign, Foreign]) -> None:
    numpy: Foreign = sys.modules["numpy"]
    (shape, _, dtype, writeable), content = state
    plain = _array(value)
    if (plain.shape, plain.dtype) != (shape, dtype):
        size = numpy.ndarray.size.__get__(value)
        if plain.dtype != dtype:
            numpy.ndarray.dtype.__set__(value, dtype)
        del plain
        if content is not None and content.size != size:
            numpy.ndarray.resize(value, shape, refcheck=False)
        numpy.ndarray.shape.__set__(value, shape)
    if content is not None:
        numpy.ndarray.setflags(value, write=True)
        _array(value)[...] = content
    if _array(value).flags.writeable is not writeable:
        numpy.ndarray.setflags(value, write=writeable)


def _array_children(value: Foreign, state: tuple[Foreign, Foreign]) -> list[object]:
    owner, content = owner_of(value), state[1]
    if owner is not value:
        return [owner]
    base: Foreign = sys.modules["numpy"]
    inside = [base.ndarray.base.__get__(value)]
    return changeable([*inside, *(content.ravel().tolist() if content.dtype == object else ())])


def _array_size(value: Foreign) -> int:
    return int(_array(value).nbytes) if owner_of(value) is value else 0


def _generator_state(value: Foreign) -> Foreign:
    if package_of(type(value)) != "numpy":
        raise CannotKeep(called(type(value)))
    return value.state


def _generator_same(value: Foreign, state: Foreign) -> bool:
    return _flat(_generator_state(value)) == _flat(state)


def _flat(state: object) -> object:
    """Return nested values with arrays as bytes, because `==` on arrays returns an array."""
    if isinstance(state, Mapping):
        return {name: _flat(item) for name, item in state.items()}
    if isinstance(state, tuple | list):
        return [_flat(item) for item in state]
    return state.tobytes() if hasattr(state, "tobytes") else state


def _generator_restore(value: Foreign, state: Foreign) -> None:
    value.state = state


def _bit_generator(value: Foreign, _: object) -> list[object]:
    if package_of(type(value)) != "numpy":
        raise CannotKeep(called(type(value)))
    return [value.bit_generator]


def _random_state(value: Foreign) -> Foreign:
    if package_of(type(value)) != "numpy":
        raise CannotKeep(called(type(value)))
    return value.get_state(legacy=False)


def _restore_random(value: Foreign, state: Foreign) -> None:
    value.set_state(state)


def _nothing(*_: object) -> tuple[object, ...]:
    return ()


# -- pandas --------------------------------------------------------------------------------------
ALWAYS_COPIES = 3
"""First major version of pandas that always copies on write."""


def _copies_on_write() -> bool:
    pandas: Foreign = sys.modules["pandas"]
    major = int(pandas.__version__.partition(".")[0])
    return major >= ALWAYS_COPIES or pandas.options.mode.copy_on_write is True


def _manager(value: Foreign) -> Foreign:
    found = (attributes_of(value) or {}).get("_mgr")
    if found is None:
        raise CannotKeep("a table without data")
    return found


def _frame_save(value: Foreign) -> tuple[Foreign, list[Foreign]]:
    manager = _manager(value)
    return manager.copy(deep=not _copies_on_write()), [*manager.axes]


def _frame_same(value: Foreign, state: tuple[Foreign, list[Foreign]]) -> bool:
    now, was = _manager(value), state[0]
    if len(now.axes) != len(was.axes) or not all(map(_same_index, now.axes, was.axes)):
        return False
    ours, theirs = _placed(now), _placed(was)
    if [place for place, _ in ours] == [place for place, _ in theirs]:
        return all(_same_values(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    return all(map(_same_values, _columns(now), _columns(was)))  # consolidated since


def _placed(manager: Foreign) -> list[tuple[list[int], Foreign]]:
    return [(block.mgr_locs.as_array.tolist(), block.values) for block in manager.blocks]


def _columns(manager: Foreign) -> list[Foreign]:
    found: dict[int, Foreign] = {}
    for places, values in _placed(manager):
        for at, place in enumerate(places):
            found[place] = values[at] if getattr(values, "ndim", 1) > 1 else values
    return [found[place] for place in sorted(found)]


def _same_index(one: Foreign, two: Foreign) -> bool:
    if [*one.names] != [*two.names]:
        return False
    if one is two or one.is_(two):
        return True
    if type(one) is not type(two) or len(one) != len(two):
        return False
    if (levels := getattr(one, "_levels", None)) is not None:
        codes = zip(one._codes, two._codes, strict=True)
        return all(map(_same_index, levels, two._levels)) and all(
            same_array(a, b) for a, b in codes
        )
    if (ordered := getattr(one, "_range", None)) is not None:
        return bool(ordered == two._range)
    return _same_values(one._data, two._data)


def _same_values(one: Foreign, two: Foreign) -> bool:
    """Return whether two arrays of a table have the same memory or equal content."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if hasattr(one, "__array_interface__"):
        a, b = one.__array_interface__, two.__array_interface__
        same = all(a.get(key) == b.get(key) for key in ("data", "shape", "strides", "typestr"))
        return same or same_array(one, two)
    if (arrow := getattr(one, "_pa_array", None)) is not None:
        return arrow is two._pa_array or bool(arrow.equals(two._pa_array))
    if one.dtype is not two.dtype and one.dtype != two.dtype:
        return False
    parts = [name for name in ("_ndarray", "_data", "_mask") if hasattr(one, name)]
    return bool(parts) and all(_same_values(getattr(one, p), getattr(two, p)) for p in parts)


def _frame_restore(value: Foreign, state: tuple[Foreign, list[Foreign]]) -> None:
    manager, now = state[0].copy(deep=False), _manager(value)
    manager.axes = [*state[1]]
    if not _copies_on_write() and _placed_alike(now, manager):
        for mine, was in zip(now.blocks, manager.blocks, strict=True):
            mine.values[...] = was.values  # views of it are restored as well
        now.axes = manager.axes
    else:
        own: Foreign = attributes_of(value)
        own["_mgr"] = manager
        own.pop("_item_cache", None)


def _placed_alike(one: Foreign, two: Foreign) -> bool:
    ours, theirs = _placed(one), _placed(two)
    return [place for place, _ in ours] == [place for place, _ in theirs] and all(
        type(a) is type(b) is _plain_array()
        and (a.shape, a.dtype) == (b.shape, b.dtype)
        and a.flags.writeable
        for (_, a), (_, b) in zip(ours, theirs, strict=True)
    )


def _plain_array() -> object:
    return getattr(sys.modules["numpy"], "ndarray", None)


def _frame_children(_: object, state: tuple[Foreign, list[Foreign]]) -> Iterator[object]:
    yield from state[1]
    for _place, values in _placed(state[0]):
        if type(values) is _plain_array() and values.dtype.hasobject:
            yield from changeable(values.ravel().tolist())


def _frame_size(value: Foreign) -> int:
    if _copies_on_write():
        return 0
    return sum(int(values.nbytes) for _, values in _placed(_manager(value)))


def _frame_shown(state: tuple[Foreign, list[Foreign]]) -> object:
    pandas: Foreign = sys.modules["pandas"]
    manager = state[0].copy(deep=False)
    kind = pandas.DataFrame if manager.ndim > 1 else pandas.Series
    return kind._from_mgr(manager, axes=manager.axes)  # public constructors copy


def _index_save(value: Foreign) -> tuple[Foreign, ...]:
    own = attributes_of(value) or {}
    names = own.get("_names")
    return own.get("_name"), None if names is None else [*names]


def _index_restore(value: Foreign, state: tuple[Foreign, ...]) -> None:
    own: Foreign = attributes_of(value)
    if "_name" in own:
        own["_name"] = state[0]
    if state[1] is not None:
        own["_names"] = state[1]


def _extension_children(value: Foreign, _: object) -> list[object]:
    if package_of(type(value)) != "pandas":
        raise CannotKeep(called(type(value)))
    return [part for name in ("_ndarray",) if (part := getattr(value, name, None)) is not None]


_INDEX = Kind(
    _index_save,
    lambda v, s: _index_save(v) == s,
    _index_restore,
    lambda *_: (),
    skip=frozenset({"_name", "_names", "_id", "_cache", "_levels", "_codes", "_data", "_range"}),
)
_FRAME = Kind(
    _frame_save,
    _frame_same,
    _frame_restore,
    _frame_children,
    _frame_size,
    shown=_frame_shown,
    skip=frozenset({"_mgr", "_item_cache"}),
)


# -- polars --------------------------------------------------------------------------------------
def _inner(value: Foreign) -> str:
    if package_of(type(value)) != "polars":
        raise CannotKeep(called(type(value)))
    return "_df" if hasattr(value, "_df") else "_s"


def _polars_restore(value: Foreign, state: Foreign) -> None:
    setattr(value, _inner(value), getattr(state.clone(), _inner(value)))


def _polars_same(value: Foreign, state: Foreign) -> bool:
    if _inner(value) == "_s":
        return bool(value.name == state.name and value.dtype == state.dtype and value.equals(state))
    return bool(value.schema == state.schema and value.equals(state))


def _polars_save(value: Foreign) -> Foreign:
    _inner(value)
    return value.clone()


_POLARS = Kind(_polars_save, _polars_same, _polars_restore, lambda *_: ())

_LIBRARIES: Mapping[tuple[str, str], Kind] = {
    ("numpy", "ndarray"): Kind(
        _array_save,
        _array_same,
        _array_restore,
        _array_children,
        _array_size,
        shown=lambda state: state[1],
    ),
    ("numpy.random", "Generator"): Kind(
        lambda _: None, lambda *_: True, lambda *_: None, _bit_generator
    ),
    ("numpy.random", "RandomState"): Kind(
        _random_state, lambda v, s: _flat(_random_state(v)) == _flat(s), _restore_random, _nothing
    ),
    ("numpy.random", "BitGenerator"): Kind(
        _generator_state, _generator_same, _generator_restore, lambda *_: (), whole=True
    ),
    ("pandas.core.generic", "NDFrame"): _FRAME,
    ("pandas", "Index"): _INDEX,
    ("pandas.api.extensions", "ExtensionArray"): Kind(
        lambda _: None, lambda *_: True, lambda *_: None, _extension_children, whole=True
    ),
    ("polars", "DataFrame"): _POLARS,
    ("polars", "Series"): _POLARS,
    ("polars", "LazyFrame"): CONSTANT,
    ("polars", "Expr"): CONSTANT,
}


def memory_of(value: Foreign) -> int:
    """Return the bytes of an array or table, 0 for other values."""
    known = {name: kind for (_, name), kind in _LIBRARIES.items()}
    bases = {id(base) for base in bases_of(type(value))}
    for number, kind in library_kinds().items():
        if number in bases:
            if kind is _FRAME:
                return sum(int(values.nbytes) for _, values in _placed(_manager(value)))
            if kind is known["ndarray"]:
                return int(_array(value).nbytes)
            if kind is _POLARS and hasattr(value, "estimated_size"):
                return int(value.estimated_size())
    return 0


def open_figures() -> list[object]:
    """Return the dict of the figures that pyplot has open: the current one needs no variable."""
    helpers: Foreign = sys.modules.get("matplotlib._pylab_helpers")
    return [] if helpers is None else [helpers.Gcf.figs]


# -- settings outside of any variable ------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the process or of a library that code changes without a variable."""

    name: str
    """What it is, for the user."""
    module: str
    """The module that has it."""
    read: Callable[[Foreign], Foreign]
    """Return its value from that module."""
    write: Callable[[Foreign], None]
    """Set its value."""

    def value(self) -> Foreign:
        """Return its value, or None if the module is not loaded."""
        return self.read(sys.modules[self.module]) if self.module in sys.modules else None

    def same(self, one: Foreign, two: Foreign) -> bool:
        """Return whether two values are equal, without comparing the user's objects."""
        if isinstance(one, dict) and isinstance(two, dict):
            return one.keys() == two.keys() and all(_plainly_equal(one[k], two[k]) for k in one)
        return _flat(one) == _flat(two)


def _plainly_equal(one: object, two: object) -> bool:
    if one is two:
        return True
    plain = id(type(one)) in PLAIN or isinstance(one, list | tuple)
    return plain and type(one) is type(two) and one == two


def _environment(was: dict[str, str]) -> None:
    for name in os.environ.keys() - was.keys():
        del os.environ[name]
    os.environ.update({k: v for k, v in was.items() if os.environ.get(k) != v})


def _directory(system: Foreign) -> Foreign:
    try:
        return system.getcwd()
    except OSError:  # deleted
        return None


def _call(module: str, name: str, *given: object, **options: object) -> None:
    found: Foreign = sys.modules[module]
    getattr(found, name)(*given, **options)


def _options(config: Foreign) -> dict[str, Foreign]:
    found: dict[str, Foreign] = {}

    def visit(tree: Mapping[str, Foreign], path: str) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                visit(value, f"{path}{name}.")
            else:
                found[path + name] = value

    visit(config._global_config, "")  # `get_option` takes 100 times as long
    return found


def _set_options(was: dict[str, Foreign]) -> None:
    pandas: Foreign = sys.modules["pandas"]
    now = _options(sys.modules["pandas._config.config"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in was.items():
            if not _plainly_equal(now.get(name), value):
                pandas.set_option(name, value)


def _set_rc(was: dict[str, Foreign]) -> None:
    parameters: Foreign = getattr(sys.modules["matplotlib"], "rcParams", None)
    dict.clear(parameters)
    dict.update(parameters, was)


SETTINGS = (
    Setting(
        "the random state of Python",
        "random",
        lambda module: module.getstate(),
        random.setstate,
    ),
    Setting(
        "the random state of numpy",
        "numpy.random",
        lambda module: module.get_state(),
        lambda was: _call("numpy.random", "set_state", was),
    ),
    Setting("environment variables", "os", lambda module: dict(module.environ), _environment),
    Setting("the working directory", "os", _directory, os.chdir),
    Setting(
        "sys.path",
        "sys",
        lambda module: [*module.path],
        lambda was: sys.path.__setitem__(slice(None), was),
    ),
    Setting(
        "the options of matplotlib",
        "matplotlib",
        lambda module: dict(dict.items(module.rcParams)),
        _set_rc,
    ),
    Setting("the options of pandas", "pandas._config.config", _options, _set_options),
    Setting(
        "the print options of numpy",
        "numpy",
        lambda module: module.get_printoptions(),
        lambda was: _call("numpy", "set_printoptions", **was),
    ),
)
"""The settings that are saved with the variables."""


def settings_now() -> list[Foreign]:
    """Return the current values of `SETTINGS`."""
    return [setting.value() for setting in SETTINGS]

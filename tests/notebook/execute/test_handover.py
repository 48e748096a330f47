"""Handing variables to another process: nothing of the user's code runs, and nothing is wrong."""

from __future__ import annotations

import sys
import types

import pytest
from hermes_nb.notebook.execute.handover import TooLargeError, hand_over, take_over

TRAPS = """
import abc, builtins, collections, dataclasses, enum, functools, logging, random, types, uuid
import decimal, datetime, fractions, pathlib, re, zoneinfo
ran = []
def spring(*a, **k):
    ran.append("ran")
    raise KeyError("sprung")
class Reduce:
    def __reduce__(self): spring()
class ReduceEx:
    def __reduce_ex__(self, protocol): spring()
class GetState:
    def __getstate__(self): spring()
class NewArgs:
    def __getnewargs__(self): spring()
class NewArgsEx:
    def __getnewargs_ex__(self): spring()
class Attribute:
    def __getattribute__(self, name): spring()
class Fallback:
    def __getattr__(self, name): spring()
class Called:
    __call__ = __getattr__ = spring
class Claimed:
    __class__ = property(spring)
class Dictionary:
    __dict__ = property(spring)
class Shown:
    __repr__ = __str__ = __format__ = spring
class Compared:
    __eq__ = __hash__ = __bool__ = __len__ = __lt__ = spring
class Copied:
    __copy__ = __deepcopy__ = __iter__ = spring
class Lazy:
    @property
    def value(self): spring()
    __slots__ = ()
class Descriptor:
    def __get__(self, *_): spring()
    def __set__(self, *_): spring()
class Described:
    field = Descriptor()
    __module__ = Descriptor()
class Meta(type):
    def __getattribute__(cls, name): spring()
    def __hash__(cls): spring()
    def __eq__(cls, other): spring()
    def __instancecheck__(cls, other): spring()
    def __subclasscheck__(cls, other): spring()
    __module__ = property(spring)
    __reduce_ex__ = spring
class Metaclassed(metaclass=Meta): pass
class Texts(str):
    __str__ = __hash__ = __eq__ = __reduce_ex__ = __len__ = spring
class Numbers(int):
    __int__ = __index__ = __reduce_ex__ = __pos__ = __eq__ = __hash__ = spring
class Lists(list):
    __iter__ = __len__ = __getitem__ = copy = spring
class Dicts(dict):
    items = keys = __iter__ = __len__ = copy = spring
class Tuples(tuple):
    __iter__ = __getitem__ = __len__ = spring
class Sets(set):
    __iter__ = copy = __contains__ = spring
class Posed:
    __reduce_ex__ = spring
Posed.__module__, Posed.__qualname__ = "pandas.core.frame", "DataFrame"
class Planted:
    __reduce_ex__ = spring
Planted.__module__ = "pandas.planted"
planted = types.ModuleType("pandas.planted"); planted.Planted = Planted
import sys; sys.modules["pandas.planted"] = planted
class Ordered(dict):
    def __reduce__(self): spring()
def with_attributes(value, *names):
    for name in names: setattr(value, name, spring)
    return value
class Late(types.ModuleType):
    def __getattr__(self, name): spring()
Odd = type("Odd", (), {"__qualname__": Texts("Odd"), "__module__": Shown()})
@dataclasses.dataclass
class Data:
    x: object = 1
    __getstate__ = spring
class Zone(datetime.tzinfo):
    utcoffset = dst = tzname = __reduce__ = spring
class Key(str):
    __hash__ = str.__hash__
    def __eq__(self, other): ran.append("compared"); return False
Texts_key = str.__new__(Texts, "key")
"""
OBJECTS = {
    "reduce": "Reduce()",
    "reduce_ex": "ReduceEx()",
    "getstate": "GetState()",
    "getnewargs": "NewArgs()",
    "getnewargs_ex": "NewArgsEx()",
    "getattribute": "Attribute()",
    "getattr": "Fallback()",
    "class property": "Claimed()",
    "dict property": "Dictionary()",
    "repr": "Shown()",
    "eq": "Compared()",
    "copy": "Copied()",
    "property": "Lazy()",
    "descriptor": "Described()",
    "metaclass": "Metaclassed",
    "its object": "object.__new__(Metaclassed)",
    "str": "Texts_key",
    "int": "int.__new__(Numbers, 3)",
    "list": "Lists([1])",
    "dict": "Dicts(a=1)",
    "tuple": "tuple.__new__(Tuples, (1,))",
    "set": "set.__new__(Sets)",
    "posed": "Posed()",
    "planted": "Planted()",
    "dict with reduce": "Ordered(a=1)",
    "odd names": "Odd()",
    "dataclass": "Data()",
    "module": "Late('json')",
    "shadowed dict": "with_attributes(collections.OrderedDict(a=1), 'items', '__reduce__')",
    "shadowed counter": "with_attributes(collections.Counter('a'), 'items', '__reduce__')",
    "shadowed partial": "with_attributes(functools.partial(len), '__reduce__', '__reduce_ex__')",
    "shadowed frame": "(f := pd.DataFrame({'a': [1]})).__dict__.update(__getstate__=spring) or f",
    "odd class": "type('Own', (), {Key('__dict__'): 1})()",
    "an odd class": "type('Own', (), {Key('__dict__'): 1})",
    "logger": "logging.Logger(Texts_key)",
    "uuid": "uuid.UUID(int=1, is_safe=Compared())",
    "fraction": "fractions.Fraction(1, 3)",
    "method": "types.MethodType(Called(), 1)",
    "partial": "functools.partial(spring, Reduce())",
    "timezone": "datetime.datetime(2024, 1, 1, tzinfo=Zone())",
    "in a list": "[1, [Reduce(), {'a': GetState()}]]",
    "in a cycle": "(c := [Reduce()]).append(c) or c",
    "in a frame": "pd.DataFrame({'a': [Reduce(), Compared()]}, dtype=object)",
    "in attrs": "(f := pd.DataFrame({'a': [1]})).attrs.update(x=Reduce()) or f",
    "in an array": "np.array([Reduce(), GetState()], dtype=object)",
    "of an array": "np.zeros(2).view(type('Own', (np.ndarray,), {'__reduce__': spring}))",
    "of a frame": "type('Own', (pd.DataFrame,), {'__getstate__': spring})({'a': [1]})",
    "default": "(lambda x=Reduce(): x)",
    "closure": "(lambda x: lambda: x)(Reduce())",
    "class attribute": "type('Own', (), {'x': Reduce(), '__module__': '__main__'})",
    "generator": "(spring() for _ in [1])",
    "cache": "functools.lru_cache(spring)",
    "exception": "type('Own', (ValueError,), {'__reduce__': spring})('x')",
}


@pytest.fixture
def notebook(monkeypatch):
    """Return the namespace of a notebook with the traps in it."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    namespace = vars(main)
    exec("import numpy as np, pandas as pd", namespace)
    exec(TRAPS, namespace)
    yield namespace
    sys.modules.pop("pandas.planted", None)


@pytest.mark.parametrize("name", OBJECTS)
def test_nothing_of_a_hostile_object_runs(notebook, name):
    notebook["x"] = eval(OBJECTS[name], notebook)
    notebook["ran"].clear()  # making some of them springs their own trap
    handed = hand_over("x", notebook, {})
    assert notebook["ran"] == []
    assert "x" in handed.names or "x" in handed.left


def test_hostile_names_are_not_compared(notebook):
    class Name(str):
        __slots__ = ()

        def __eq__(self, other):
            notebook["ran"].append("compared")
            return False

        __hash__ = str.__hash__

    namespace = {Name("x"): 1, "x": 2}
    notebook["ran"].clear()
    handed = hand_over("x", namespace, {Name("x"): 1})
    assert (notebook["ran"], list(handed.names)) == ([], ["x"])


LIFE = """
from typing import NamedTuple
import collections, dataclasses, datetime, decimal, functools, re, threading, zoneinfo
K = 3
df = pd.DataFrame({"a": range(5), "b": list("abcde"), "c": pd.Categorical(list("aabbc"))})
df["t"] = pd.date_range("2024", periods=5, tz="Europe/Paris")
alias, column, groups, dates = df, df["a"], df.groupby("c", observed=True), df.set_index("t")
array, mixed = np.arange(1e5), np.array([1, "a", df], dtype=object)
def helper(x): return x + K
def f(x, y=2):
    def inner(n): return 1 if n < 2 else n * inner(n - 1)
    return helper(x) + inner(y)
def shout(function):
    @functools.wraps(function)
    def wrapped(*a): return function(*a) + 100
    return wrapped
@shout
def loud(x): return x + K
@functools.lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
@dataclasses.dataclass
class Point:
    x: int = 1
    tags: list = dataclasses.field(default_factory=list)
    def moved(self): return Point(self.x + K)
@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    x: int = 1
class Base:
    def hi(self): return "hi"
class Sub(Base):
    __slots__ = ("z",)
    def __init__(self): super().__init__(); self.z = 3; self.point = Point(4); self.me = self
    def hi(self): return super().hi() + "!"
    @property
    def double(self): return self.z * 2
    @classmethod
    def named(cls): return cls.__name__
class Row(NamedTuple):
    a: int
    b: int = 4
class Extra(dict): pass
Pair = collections.namedtuple("Pair", "a b")
point, fixed, sub, row, pair, extra = Point(5), Fixed(6), Sub(), Row(1), Pair(1, 2), Extra(a=1)
extra.note = "n"
ordered = collections.OrderedDict(a=1, b=2); ordered.move_to_end("a")
plain = {"n": None, "c": 1j, "when": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "zone": zoneinfo.ZoneInfo("Europe/Paris"), "d": decimal.Decimal("1.5"), "p": re.compile("a", 2),
    "dq": collections.deque([1, 2], 3), "dd": collections.defaultdict(list, {"a": [1]}),
    "n2": collections.Counter("aab"), "ts": pd.Timestamp("2024-01-01", tz="Europe/Paris"),
    "na": pd.NA, "functions": [np.mean, np.add, len, functools.partial(f, 1), point.moved]}
partly = {"df": df, "lock": threading.Lock()}
rng = np.random.default_rng(0)
"""
CHECKS = """
alias is df and partly["df"] is df and mixed[2] is df and sub.me is sub
df.equals(df_) and df.dtypes.equals(df_.dtypes) and dates.index.equals(dates_.index)
column.equals(column_) and groups.a.sum().equals(groups_.a.sum()) and (array == array_).all()
f(1, 4) == f_(1, 4) and loud(1) == loud_(1) == 104 and fib(20) == fib_(20)
point == Point(5) and point.moved() == Point(8) and Point() == Point(1, [])
repr(fixed) == repr(fixed_) and sub.point == Point(4) and Sub().hi() == "hi!"
(sub.hi(), sub.z, sub.double, sub.named()) == ("hi!", 3, 6, "Sub")
row == row_ and row.b == 4 and pair.a == 1 and Row(2).b == 4 and repr(pair) == repr(pair_)
extra == {"a": 1} and extra.note == "n" and type(extra) is Extra and list(ordered) == ["b", "a"]
all(repr(plain[k]) == repr(plain_[k]) for k in plain if k not in ("functions", "dd"))
plain["dd"]["new"] == [] and [plain["functions"][0]([1, 3]), plain["functions"][3]()] == [2, 6]
rng.random() == rng_.random()
"""


def test_values_arrive_as_they_are(notebook):
    before = set(notebook)
    exec(LIFE, notebook)
    names = [name for name in notebook if name not in before]
    handed = hand_over(" ".join(names), notebook, {})
    arrived: dict[str, object] = {}
    buffers = [bytearray(each) for each in handed.buffers]
    assert take_over(handed.names, handed.head, buffers, arrived) == {}
    assert handed.left == {"partly": "_thread.lock"}
    both = {**arrived, **{f"{name}_": notebook[name] for name in names}}
    for check in CHECKS.strip().splitlines():
        assert eval(check, both), check
    with pytest.raises(RuntimeError, match=r"this _thread\.lock is not in the copy"):
        eval("partly['lock'].acquire()", arrived)


def test_only_names_that_the_code_can_reach_are_copied(notebook):
    exec("a, b, c, api_key = 1, 2, 3, 'sk-1234'\ndef f(): return b\n_hidden = 4", notebook)
    assert hand_over("f()", notebook, {}).names.keys() == {"f", "b"}
    assert hand_over("%time print('{a}')", notebook, {}).names.keys() == {"a"}
    everything = hand_over("eval('c')", notebook, {})
    assert {"a", "b", "c", "f"} <= set(everything.names)
    assert hand_over("api_key", notebook, {}).left == {"api_key": "a secret"}
    assert hand_over("a", notebook, {"a": notebook["a"]}).names == {}


def test_too_much_is_refused_before_it_is_copied(notebook):
    notebook["big"] = notebook["np"].empty(63_000_000)  # never touched, so it takes no memory
    with pytest.raises(TooLargeError, match="more than 500 MB"):
        hand_over("big", notebook, {})


def test_a_deep_structure_is_left_out(notebook):
    exec("deep = []\nfor _ in range(100_000): deep = [deep]", notebook)
    notebook["near"] = 1
    handed = hand_over("deep, near", notebook, {})
    assert list(handed.names) == ["near"] and "RecursionError" in handed.left["deep"]

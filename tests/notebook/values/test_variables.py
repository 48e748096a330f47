"""What is said of variables, and what is never done to them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types

import pytest
from hermes_nb.core.escapes import visible
from hermes_nb.notebook.previews import names_a_secret, preview
from hermes_nb.notebook.variables import (
    brief,
    describe,
    summaries,
    user_variables,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cpu import within

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner),
        st.frozensets(st.integers()), st.builds(collections.deque, st.lists(inner)),
    ),
)  # fmt: skip


class Hostile:
    """Anything that is looked at too closely fails the test."""

    def __repr__(self):
        pytest.fail("repr")

    def __len__(self):  # noqa: PLE0303
        pytest.fail("len")

    def __eq__(self, other):
        pytest.fail("eq")

    def __hash__(self):  # noqa: PLE0309
        pytest.fail("hash")

    def __getattr__(self, name):
        pytest.fail(f"getattr {name}")

    @property
    def __class__(self):
        pytest.fail("class")


class HostileList(list):
    __len__ = __iter__ = __repr__ = Hostile.__len__


def pandas():
    return pytest.importorskip("pandas")


@pytest.fixture
def frame():
    return pandas().DataFrame(
        {"island": ["Dream", None] * 50, "mass": range(100), "ratio": [0.5] * 100}
    )


def test_only_the_users_names_count(shell):
    shell.run_cell(
        "import os\nfrom os.path import join\nfrom pathlib import Path\nx = 1\n_private = 2\n"
        "def f(): pass\nclass K: pass\n7"
    )
    names = list(user_variables(shell.user_ns, shell.user_ns_hidden))
    assert names == ["x", "f", "K"]
    shell.user_ns["exit"] = 5
    assert "exit" in user_variables(shell.user_ns, shell.user_ns_hidden)


def test_summaries(frame):
    namespace = {
        "df": frame, "s": frame["mass"], "a": frame["ratio"].to_numpy().reshape(10, 10),
        "d": {1: 2}, "t": "text", "n": 5, "none": None, "wide": frame[["mass"]],
    }  # fmt: skip
    found = {v.name: (v.type, v.shape, v.columns) for v in summaries(namespace)}
    assert found["df"][:2] == ("pandas DataFrame", "100 x 3")
    assert list(found["df"][2]) == ["island", "mass", "ratio"]
    assert found["df"][2]["mass"] == "int64"
    assert found["s"] == ("pandas Series", "100 items", None)
    assert found["a"] == ("numpy ndarray", "10 x 10", None)
    assert found["d"] == ("dict", "1 item", None)
    assert found["t"] == ("str", "4 characters", None)
    assert found["n"] == ("int", "", None)
    (wide,) = summaries({"df": pandas().DataFrame([range(500)])})
    assert wide.shape == "1 x 500" and len(wide.columns) == 40


def test_columns_that_change_in_place_are_read_again(frame):
    namespace = {"df": frame}
    steps = [
        lambda: frame.__setitem__("mass", frame["mass"].astype(float)),
        lambda: frame.isetitem(2, frame["ratio"].astype("category")),
        lambda: setattr(frame, "columns", ["island", "weight", "share"]),
        lambda: frame.insert(0, "year", 2026),
        lambda: frame.pop("weight"),
    ]
    for step in steps:
        step()
        (found,) = summaries(namespace)
        assert found.columns == {name: str(frame[name].dtype) for name in frame.columns}
    assert list(found.columns.values()) == ["int64", str(frame["island"].dtype), "category"]


def test_looking_around_runs_no_code_of_the_values():
    namespace = {"h": Hostile(), "l": HostileList([1, 2])}
    assert [(v.type, v.shape) for v in summaries(namespace)] == [
        ("tests Hostile", ""),
        ("tests HostileList", "2 items"),
    ]


def test_looking_around_is_cheap():
    namespace = {f"v{i}": [i] * 10 for i in range(2000)}
    within(1, lambda: summaries(namespace))  # 20 ms, alone
    within(1, lambda: describe("t", "a" * 50_000_000))


@settings(max_examples=40)
@given(st.text(max_size=20), values)
def test_anything_can_be_described_within_the_budget(name, value):
    text = describe(name, value, budget=300)
    assert len(text) < 300 + 80
    assert text.startswith(visible(name, lines=True)[:100])
    short = preview(value, 100)
    assert len(short) < 3000 and "\n" not in short


def test_a_table(frame):
    text = describe("df", frame)
    assert text.startswith("df: pandas DataFrame, 100 x 3\n")
    assert "island" in text and "50 missing" in text and "mass  int64\n" in text
    assert "kB in memory" in text
    assert len(text.splitlines()) < 15
    table = pandas().DataFrame({"x\x1b[31m": [1]})
    (variable,) = summaries({"t": table})
    assert "\x1b" not in describe("t", table) + "".join(variable.columns)


def test_columns_and_arrays(frame):
    assert "min 0, max 99" in describe("s", frame["mass"])
    assert "50 missing" in describe("s", frame["island"])
    assert "dtype float64, 800 bytes, min 0.5" in describe("a", frame["ratio"].to_numpy())


def test_tables_columns_and_arrays_of_odd_shape(frame):
    pd = pandas()
    multi = pd.DataFrame({("a", "b"): [1]}, index=pd.MultiIndex.from_tuples([(1, 2)]))
    for odd in (
        pd.DataFrame([[1, "x"]], columns=["a", "a"]), pd.DataFrame([range(300)]), pd.DataFrame(),
        multi, pd.Series([], dtype=float), pd.Series([pd.NA], dtype="Int64"), pd.Index([1, 2]),
        pd.Series(pd.to_datetime(["2020-01-01"])), frame["mass"].to_numpy()[:0],
    ):  # fmt: skip
        text = describe("x", odd)
        assert "cannot be shown" not in text, text
        assert len(text) <= 2100


def test_a_tensor_is_described_by_its_attributes():
    tensor = type("Tensor", (Hostile,), {
        "__module__": "torch", "shape": (2, 3), "dtype": "float32", "device": "cuda:0",
        "requires_grad": False, "layout": None, "format": None, "nnz": None,
    })()  # fmt: skip
    text = describe("t", tensor)
    assert text == "t: torch Tensor, 2 x 3\ndtype float32, device cuda:0, requires_grad False"


def test_containers():
    text = describe("d", {"a": 1, "b": [1] * 1000, "c": {"x": {"y": {"z": {}}}}})
    assert "values: int, list, dict" in text
    assert "[1, 1, 1, 1, 1, 1, 1, 1, … 992 more]" in text
    assert describe("l", list(range(1000))).endswith("[0, 1, 2, 3, 4, 5, 6, 7, … 992 more]")
    Point = collections.namedtuple("Point", "x y")
    assert "Point(x=1, y=(2,))" in describe("p", Point(1, (2,)))
    assert "'a': 1" in describe("d", collections.OrderedDict(a=1))
    recursive: list = [1]
    recursive.append(recursive)
    describe("r", recursive)
    generator = (i for i in range(3))
    assert "not consumed" in describe("g", generator)
    assert list(generator) == [0, 1, 2]


def test_code():
    def function(x, *, y=3):
        """Add up.

        More.
        """

    class Model:
        """A model."""

        def fit(self): ...

    assert describe("f", function) == "f: function\nfunction(x, *, y=3)\nAdd up."
    assert describe("M", Model) == "M: class\nModel()\nA model.\nmembers: fit"
    assert "print" in describe("p", print)
    assert describe("m", types).startswith("m: module\nDefine names")
    assert "cannot be shown" not in describe("p", functools.partial(print, 1))


def test_an_object_shows_its_attributes():
    @dataclasses.dataclass
    class Config:
        rate: float
        password: str
        _hidden: int = 0

    text = describe("c", Config(0.5, "hunter2"))
    assert ".rate: 0.5" in text and "_hidden" not in text.partition("\n  .")[2]
    assert ".password: (not shown" in text


@pytest.mark.usefixtures("signals")
def test_reprs_that_misbehave():
    def shown(of):
        return type("Odd", (), {"__repr__": of})()

    def endless(_):
        while True:
            pass

    def broken(_):
        raise RuntimeError

    def ends(_):
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hermes_nb.notebook.variables.SECONDS", 0.1)
        for value in (shown(endless), [shown(endless)]):
            assert "took longer than 0.1 s" in describe("s", value)
    assert "its repr raises RuntimeError" in describe("b", {"b": shown(broken)})
    assert len(describe("h", shown(lambda _: "z" * 10**7))) < 1000
    assert "TypeError" in describe("l", shown(lambda _: 5))
    assert "SystemExit" in describe("e", shown(ends))


def test_classes_that_misbehave():
    class Meta(type):
        def __getattribute__(cls, name):
            raise RuntimeError(name)

    odd = Meta("Odd", (), {})
    for value in (odd, type.__call__(odd)):
        namespace = {"v": value}
        (variable,) = summaries(namespace) or summaries({"v": 1})
        assert brief(variable, value).startswith("v")
        assert describe("v", value).startswith("v: ")


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *(("password", "x", True), ("db_password", "x", True), ("apiKey", "x", True)),
        *(("OPENAI_API_KEY", "sk", True), ("client_secret", b"x", True)),
        *(("token", "a1b2c3d4e5f6g7", True), ("key", "species", False)),
        *(("sort_key", "column_a", False), ("token", "a long text that has words", False)),
        *(("api_key", 5, False), ("monkey", "a1b2c3d4e5f6g7", False)),
        ("passwords_seen", ["x"], False),
    ],
)
def test_names_of_secrets(name, value, secret):
    assert names_a_secret(name, value) is secret


def test_secrets_are_not_shown():
    key = "sk-proj-" + "a1B2" * 8
    for name, value in [
        ("password", "hunter2"), ("config", {"password": "hunter2", "n": {"apiKey": "hunter2"}}),
        ("x", [key]), ("x", f"call with {key}"), ("x", {"any": key}),
    ]:  # fmt: skip
        text = describe(name, value)
        assert "hunter2" not in text and key not in text, text
    (variable,) = summaries({"password": "hunter2"})
    assert brief(variable, "hunter2") == "password: str, 7 characters"


def test_briefly():
    namespace = {"n": 5, "t": "short", "long": "x" * 100, "l": [1]}
    assert [brief(v, namespace[v.name]) for v in summaries(namespace)] == [
        "n = 5", "t = 'short'", "long: str, 100 characters", "l: list, 1 item",
    ]  # fmt: skip

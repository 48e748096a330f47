"""Segments: what is safe together runs together, order is kept, nothing is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.segments import segments
from hermes_nb.core.tools import Risk, Tool, Toolset
from hypothesis import given
from hypothesis import strategies as st


def make(name, **options):
    return Tool(name=name, description="", parameters={}, run=lambda c, a: "", **options)


@pytest.fixture
def tools(tmp_path):
    return toolset(tmp_path)


def toolset(root):
    return Toolset(
        [
            make("read", paths=("path",), root=root),
            *(make("write", risk=Risk.WRITE, paths=("path",), root=root), make("look")),
            *(make("run", risk=Risk.EXECUTE), make("ask", exclusive=True)),
            *(make("anywhere", risk=Risk.WRITE), make("memory", risk=Risk.REMEMBER)),
        ]
    )


def calls(*named):
    return [
        ToolCall(id=str(n), name=name, arguments={"path": path} if path else {})
        for n, (name, path) in enumerate(named)
    ]


def shape(named, tools):
    return [[call.name for call in segment] for segment in segments(calls(*named), tools)]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ([], []),
        ([("read", "a"), ("read", "a"), ("look", "")], [["read", "read", "look"]]),
        ([("write", "a"), ("write", "b")], [["write", "write"]]),
        ([("write", "a"), ("write", "./x/../a")], [["write"], ["write"]]),
        ([("read", "a"), ("write", "a")], [["read"], ["write"]]),
        ([("write", "d/f"), ("read", "d")], [["write"], ["read"]]),
        ([("write", "dir/f"), ("read", "di")], [["write", "read"]]),
        ([("read", "a"), ("run", ""), ("read", "b")], [["read"], ["run"], ["read"]]),
        ([("ask", ""), ("ask", "")], [["ask"], ["ask"]]),
        ([("anywhere", ""), ("read", "a")], [["anywhere"], ["read"]]),
        ([("memory", ""), ("memory", "")], [["memory"], ["memory"]]),
        ([("unknown", "a"), ("read", "a")], [["unknown", "read"]]),
        ([("write", "a"), ("read", "")], [["write"], ["read"]]),
    ],
)
def test_what_may_run_side_by_side(tools, named, expected):
    assert shape(named, tools) == expected


def test_a_call_that_could_not_be_read_is_a_barrier(tools):
    batch = calls(("read", "a"), ("write", "b"), ("read", "c"))
    batch[1] = replace(batch[1], problem="the arguments are no JSON")
    assert segments(batch, tools) == [[batch[0]], [batch[1]], [batch[2]]]


def test_links_do_not_hide_that_paths_are_the_same(tmp_path, tools):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert shape([("write", "real/f"), ("write", "link/f")], tools) == [["write"], ["write"]]
    assert shape([("write", "real/f"), ("write", str(tmp_path / "real/f"))], tools) == [
        ["write"],
        ["write"],
    ]


names = st.sampled_from(["read", "write", "look", "run", "ask", "anywhere", "unknown"])
paths = st.sampled_from(["", "a", "b", "a/c", "./a", "a/../b", "\0", "x" * 5000])


@given(st.lists(st.tuples(names, paths), max_size=12))
def test_any_batch(tmp_path_factory, named):
    tools = toolset(tmp_path_factory.getbasetemp())
    batch = calls(*named)
    found = segments(batch, tools)
    assert list(itertools.chain(*found)) == batch
    for segment in found:
        alone = [call for call in segment if call.name in ("run", "ask", "anywhere")]
        assert not alone or len(segment) == 1
        written = [
            call.arguments["path"] for call in segment if call.name == "write" and call.arguments
        ]
        assert len(set(written)) == len(written)


def test_home_is_where_the_tools_find_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    named = [("write", "~/a"), ("write", "a"), ("write", "~b")]
    assert shape(named, toolset(tmp_path)) == [["write"], ["write", "write"]]

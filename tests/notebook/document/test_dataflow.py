"""Stale cells: those whose output a run of the notebook from the top would change."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hermes_nb.notebook.document.dataflow import Lineage, RanCell, Stale, flow_of, stale_cells


def cells(*sources, order=(), edited=(), names=None):
    """Return cells that ran in order, then those in `order` again; `edited` gives new sources."""
    runs, lineage = [*range(len(sources)), *order], Lineage()
    last = {at: when for when, at in enumerate(runs)}
    read = {at: lineage.run(sources[at], (names or {}).get(at)) for at in runs}
    found = [
        RanCell(
            source=each,
            when=last[at],
            ran=each,
            shown=True,
            read=read[at],
            names=(names or {}).get(at),
        )
        for at, each in enumerate(sources)
    ]
    for at, source in dict(edited).items():
        one = found[at]
        found[at] = replace(one, source=source)
    return found


def stale(*sources, outside=None, **options):
    return {each.cell: each for each in stale_cells(cells(*sources, **options), outside or {})}


LOAD, CLEAN, PLOT = "df = load()", "df['b'] = df.a * 2", "print(df.b.sum())"


def test_a_cell_that_ran_before_what_it_reads_is_stale_and_so_is_what_reads_it():
    assert stale(LOAD, CLEAN, PLOT) == {}
    found = stale(LOAD, CLEAN, PLOT, order=[0])
    assert found == {1: Stale(1, "order", "df", 0), 2: Stale(2, "order", "df", 0)}
    assert stale(LOAD, CLEAN, PLOT, order=[0, 1, 2]) == {}
    assert list(stale(LOAD, CLEAN, PLOT, "x = 1", order=[0, 1])) == [2]


def test_an_edited_cell_is_stale_with_all_that_depends_on_it():
    found = stale(LOAD, "x = 1", PLOT, "print(x)", edited={0: "df = load(2)"})
    assert {at: each.kind for at, each in found.items()} == {0: "edited", 2: "order"}


def test_functions_classes_and_comprehensions_lead_to_what_they_use():
    use = "def f(n):\n    return n * rate"
    assert list(stale("rate = 2", use, "f(3)", order=[0])) == [2]
    assert list(
        stale("rate = 2", "class A:\n    def m(self): return rate", "A().m()", order=[0])
    ) == [2]
    assert list(stale("rate = 2", "[x * rate for x in (1, 2)]", order=[0])) == [1]
    assert list(stale("x = 2", "[x for x in (1, 2)]", "(lambda x: x)(1)", order=[0])) == []
    assert list(stale("log = []", "def f():\n    log.append(1)", "f()", "log", order=[2])) == [2, 3]


def test_what_only_perhaps_changed_says_so():
    (found,) = stale("df = load()", "tidy(df)", "df.sum()", order=[1]).values()
    assert (found.cell, found.certain) == (2, False)
    assert stale("df = load()", "tidy(df)", "df.sum()", order=[1], names={1: frozenset()}) == {}
    (found,) = stale("x = 1", "exec('print(x)')", order=[0]).values()
    assert (found.kind, found.certain) == ("hidden", False)


def test_code_outside_of_the_cells_and_earlier_kernels():
    assert stale(LOAD, PLOT, outside={"df": 9}) == {1: Stale(1, "outside", "df")}
    assert stale(LOAD, PLOT, outside={"df": 0}, order=[0, 1]) == {}
    earlier = RanCell(source="a = 1", shown=True)
    assert [each.kind for each in stale_cells([earlier], {})] == ["earlier"]


@pytest.mark.parametrize("source", ["(", "%%bash\nls", "a = \x00", "x" * 5000, "!ls\n%time y = x"])
def test_any_source_has_a_flow(source):
    assert isinstance(flow_of(source).binds, set)


STATEMENTS = (
    "{a} = {b} + {c} + {n}",
    "{l}.append({b} * {n})",
    "{l} = [{n}, {b}]",
    "{a} = len({l}) + {n}",
    "{a} += {n}",
    "{a} = sum(i * {b} for i in {l})",
    "if {b} % 2:\n    {a} = {c} - {n}\nelse:\n    {l}.append({n})",
    "def {f}(x):\n    return x + {b} + {n}",
    "{a} = {f}({c})",
)
START = "a = b = c = 1\nl = [1]\nm = [2]\ndef f(x): return x\ndef g(x): return x + 1"


def made(rng):
    """Return a random cell that ends with what it made."""
    names = {"n": rng.randrange(9), "l": rng.choice("lm"), "f": rng.choice("fg")}
    names |= dict(zip("abc", rng.sample("abc", 3), strict=True))
    statement = rng.choice(STATEMENTS).format(**names)
    shown = rng.choice((names["a"], names["l"], names["b"], f"{names['f']}(1)"))
    return f"{statement}\n_shown = {shown}"


def ran(sources, namespace):
    outputs = []
    for source in sources:
        exec(source, namespace)
        outputs.append(repr(namespace.get("_shown")))
    return outputs


def test_random_sessions_are_found_stale_where_a_run_from_the_top_differs():
    """Run sessions, edit or rerun cells, and compare with a run of all cells from the top."""
    rng, differing, missed, found, harmless = random.Random(5), 0, 0, 0, 0
    for _ in range(300):
        sources = [START, *(made(rng) for _ in range(8))]
        namespace, lineage = {}, Lineage()
        outputs, state = ran(sources, namespace), cells(*sources)
        for each in sources:
            lineage.run(each)
        for when in range(9, 9 + rng.randrange(1, 4)):
            at = rng.randrange(1, 9)
            sources[at] = made(rng) if rng.random() < 0.5 else sources[at]
            outputs[at] = ran([sources[at]], namespace)[0]
            read = lineage.run(sources[at])
            state[at] = RanCell(source=sources[at], when=when, ran=sources[at], read=read)
        fresh = ran(sources, {})
        named = {each.cell: each.certain for each in stale_cells(state, {})}
        wrong = {at for at in range(9) if fresh[at] != outputs[at]}
        differing += len(wrong)
        missed += len(wrong - named.keys())
        certain = {at for at in named if named[at]}
        found += len(certain)
        harmless += len(certain - wrong)
    print(differing, missed, found, harmless)
    assert differing > 300 and missed == 0

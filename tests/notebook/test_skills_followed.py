"""Each shipped skill followed to the letter: what its text says is there, runs, and helps."""

from __future__ import annotations

import ast
import re

import matplotlib as mpl
import pytest
from hermes_nb.models.scripted import call
from IPython.core.pylabtools import select_figure_formats
from matplotlib_inline.backend_inline import configure_inline_support

from tests.notebook.document.test_file import code, text
from tests.notebook.following import ROOT, World

LOAD = 'import pandas as pd\npenguins = pd.read_csv("penguins.csv")'
INLINE = "module://matplotlib_inline.backend_inline"
TABLE = 'table = penguins.groupby("species")["body_mass_g"].agg(["mean", "std", "count"])'
SKILLS = sorted(ROOT.glob("skills/*/*/SKILL.md"))


@pytest.fixture
def world(shell, tmp_path, monkeypatch):
    root = tmp_path / "work"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("MPLBACKEND", INLINE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    before = mpl.get_backend(), mpl.is_interactive()  # as other tests of this process left them
    from matplotlib import pyplot as plt

    plt.switch_backend(INLINE)
    mpl.interactive(True)
    configure_inline_support(shell, INLINE)  # as a kernel does for its one shell
    select_figure_formats(shell, {"png"})
    yield World(shell, root)
    plt.close("all")
    plt.switch_backend(before[0])
    mpl.interactive(before[1])


def value(told):
    """Return the number that a result begins with, without NumPy's name for its type."""
    first = told.split()[0]
    return float(re.sub(r"np\.\w+\((.*)\)", r"\1", first))


def numbers(line):
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,.]*\d|\d", line)]


def test_a_table_is_explored(world):
    world.has(text("# Penguins", "title"), code(LOAD, "load"))

    def story(skill):
        yield call("read_cells")
        yield call("run_cell", id="load")
        yield skill.step(1).does("inspect_variable", name="penguins")
        told = yield skill.step(2).runs(df="penguins")
        assert "344 rows x 8 columns" in told
        assert "sex" in told
        third = skill.step(3)
        third.says('df["x"].isna().groupby(df["group"]).mean()', "df.duplicated(subset=")
        told = yield third.does(
            "run_python", code='penguins["sex"].isna().groupby(penguins["species"]).mean()'
        )
        assert "Gentoo" in told
        fourth = skill.step(4)
        group = fourth.code(0, df="penguins", group="species", value="body_mass_g")
        told = yield call("run_python", code=group)
        assert "count" in told
        ranked = fourth.code(1, df="penguins", a="bill_length_mm", b="bill_depth_mm")
        told = yield call("run_python", code=f"float({ranked.strip()}.iloc[0, 1])")
        assert value(told) < 0  # and it turns within each species
        fifth = skill.step(5)
        yield fifth.does("insert_cell", source=group, after="load")
        made = world.cells[2]["id"]
        told = yield fifth.does("run_cell", id=made)
        assert "Chinstrap" in told

    world.follow("exploratory-data-analysis", story)
    assert "Chinstrap" in world.shown(world.cells[2])
    assert len(world["penguins"]) == 344


def test_a_figure_is_made_for_print(world):
    world.has(code(LOAD, "load"), code(TABLE, "table"))

    def story(skill):
        yield call("read_cells")
        yield call("run_cells", ids=["load", "table"])
        yield skill.step(1).runs()
        third = skill.step(3)
        cell = third.code(0, NAME="mass_by_species")
        yield third.does("insert_cell", source=cell, after="table")
        yield third.does("run_cell", id=world.cells[2]["id"])
        fifth = skill.step(5)
        fifth.says('type="markdown"')
        caption = "Body mass by species. Points: means; bars: s.d.; n = 151, 68, 123."
        yield fifth.does("insert_cell", source=caption, type="markdown")

    world.follow("publication-plots", story)
    import struct

    png = (world.root / "figures/mass_by_species.png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == (990, 720)  # 3.3 x 2.4 in at 300 dpi
    pdf = (world.root / "figures/mass_by_species.pdf").read_bytes()
    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf or b"/TrueType" in pdf
    assert "image/png" in world.shown(world.cells[2])
    assert world.cells[3]["cell_type"] == "markdown"
    assert mpl.rcParams["axes.spines.top"] is True


def test_a_database_is_asked(world):  # noqa: PLR0915 - one story
    make = f"{LOAD}\nimport sqlite3\ndb = sqlite3.connect('data.db')\n"
    make += "penguins.to_sql('penguins', db, index=False)\ndb.close()\ndel db"
    world.has(text("# Penguins in a database", "title"))

    def story(skill):
        yield call("run_python", code=make)
        first = skill.step(1)
        told = yield first.does("list_variables")
        assert "connection" not in told.lower()
        engines = yield first.does(
            "skill_view", name="sql-in-notebooks", file_path="references/engines.md"
        )
        snippet = re.search(r"## SQLite\n```python\n(.*?)```", engines, re.DOTALL)[1]
        yield call("run_python", code=snippet)
        second = skill.step(2)
        second.says('pd.read_sql_query("PRAGMA table_info(orders)", db)')
        told = yield second.does(
            "run_python", code='pd.read_sql_query("PRAGMA table_info(penguins)", db)'
        )
        assert "body_mass_g" in told
        grain = second.code(0, customer_id="island", orders="penguins")
        told = yield call("run_python", code=f'pd.read_sql_query("""{grain}""", db)')
        assert numbers(told.splitlines()[1])[-3:] == [344, 3, 0]
        third = skill.step(3)
        steps = third.code(0, customer_id="island", orders="penguins", amount="body_mass_g")
        told = yield call("run_python", code=f'pd.read_sql_query("""{steps}""", db)')
        assert "3" in told
        third.says("as parameters (`?`")
        connection = snippet.split("tables =")[0].strip()
        query = (
            'heavy = pd.read_sql_query("""\nSELECT island, COUNT(*) AS n FROM penguins\n'
            'WHERE body_mass_g > ? GROUP BY island\n""", db, params=[5000])\ndb.close()\nheavy'
        )
        fifth = skill.step(5)
        yield fifth.does("insert_cell", source=connection, after="title")
        yield fifth.does("run_cell", id=world.cells[1]["id"])
        yield fifth.does("insert_cell", source=query, after=world.cells[1]["id"])
        yield fifth.does("run_cell", id=world.cells[2]["id"])
        told = yield call("run_python", code=f"{connection}\ndb.execute('DELETE FROM penguins')")
        assert "readonly" in told
        yield call("run_python", code="db.close()")

    world.follow("sql-in-notebooks", story)
    check = world["penguins"].query("body_mass_g > 5000").groupby("island").size()
    assert world["heavy"].set_index("island")["n"].to_dict() == check.to_dict()


def test_a_failing_cell_is_mended(world):
    (world.root / "mass.csv").write_text("species,mass \nAdelie,3700\nGentoo,5000\n")
    world.has(
        code('import pandas as pd\ndf = pd.read_csv("mass.csv")', "load"),
        code('means = df.groupby("species")["mass"].mean()\nmeans', "means"),
    )

    def story(skill):
        yield call("read_cells")
        failed = yield call("run_cells", ids=["load", "means"])
        assert "KeyError" in failed
        first = skill.step(1)
        yield first.does("notebook_outline")
        yield first.does("read_cells", ids=["load", "means"])
        second = skill.step(2)
        second.says("`KeyError` (column) | `list(df.columns)`: spaces")
        yield second.does("inspect_variable", name="df")
        told = yield call("run_python", code="list(df.columns)")
        assert "'mass '" in told
        third = skill.step(3)
        told = yield third.does("run_python", code='df["mass"].mean()')
        assert "KeyError" in told
        told = yield third.runs()
        assert value(told) == 4350
        third.says("`del trial`")
        yield call("run_python", code="del trial")
        assert list(world["df"].columns) == ["species", "mass "]
        fourth = skill.step(4)
        yield fourth.does(
            "edit_cell",
            id="load",
            old='df = pd.read_csv("mass.csv")',
            new='df = pd.read_csv("mass.csv").rename(columns=str.strip)',
        )
        told = yield fourth.does("run_cells", ids=["load", "means"])
        assert "Gentoo" in told

    world.follow("fix-failing-cell", story)
    assert world["means"].to_dict() == {"Adelie": 3700.0, "Gentoo": 5000.0}
    assert world.sources[1] == 'means = df.groupby("species")["mass"].mean()\nmeans'
    assert not [cell for cell in world.cells if '"error"' in world.shown(cell)]


FUNCTION = """COLUMN = "body_mass_g"

def mean_mass(data):
    return data.groupby("species")[COLUMN].mean()"""
MODULE = '''"""Body mass of penguins, in grams, from a table with a row an animal."""

from __future__ import annotations

import pandas as pd


def mean_mass(data: pd.DataFrame, column: str = "body_mass_g") -> pd.Series:
    """Return the mean of a column (g) for each species; missing values do not count."""
    return data.groupby("species")[column].mean()
'''


@pytest.mark.slow
def test_cells_become_a_tested_module(world):
    world.has(
        code(LOAD, "load"), code(FUNCTION, "define"), code("mean_mass(penguins).round(1)", "use")
    )

    def story(skill):
        yield call("read_cells")
        before = yield call("run_cells", ids=["load", "define", "use"])
        skill.step(1).says("`notebook_outline`", "`read_cells`")
        told = yield skill.step(2).runs(FUNC="mean_mass")
        assert "globals: ['COLUMN']" in told
        yield skill.step(3).does("write_file", path="penguin_mass.py", content=MODULE)
        fourth = skill.step(4)
        tests = yield fourth.does(
            "skill_view", name="cells-to-module", file_path="references/tests.md"
        )
        block = re.search(r"```python\n(.*?)```", tests, re.DOTALL)[1]
        block = block.replace("from penguins import", "from penguin_mass import")
        yield fourth.does("write_file", path="test_penguin_mass.py", content=block)
        told = yield fourth.runs(test_NAME="test_penguin_mass")
        assert "3 passed" in told
        fourth.says("break the module once and see it fail")
        broken = MODULE.replace(".mean()", ".max()")
        yield call("write_file", path="penguin_mass.py", content=broken)
        told = yield fourth.runs(test_NAME="test_penguin_mass")
        assert "failed" in told
        yield call("write_file", path="penguin_mass.py", content=MODULE)
        fifth = skill.step(5)
        fifth.says("`from NAME import FUNC`")
        new = "from penguin_mass import mean_mass"
        yield fifth.does("edit_cell", id="define", new=new)
        after = yield fifth.does("run_cells", ids=["define", "use"])
        assert (
            after.split("Adelie")[1].split("dtype")[0]
            == before.split("Adelie")[1].split("dtype")[0]
        )

    world.follow("cells-to-module", story)
    assert world["mean_mass"].__module__ == "penguin_mass"


SLOW = """totals = {}
for _, row in orders.iterrows():
    totals[row["shop"]] = totals.get(row["shop"], 0) + row["price"] * row["count"]
revenue = pd.Series(totals, name="revenue").sort_index().rename_axis("shop")"""
FAST = """revenue = (orders["price"] * orders["count"]).groupby(orders["shop"]).sum()
revenue = revenue.rename("revenue").sort_index()"""
ORDERS = """import pandas as pd
orders = pd.DataFrame({"shop": [f"s{n % 7}" for n in range(3000)], "price": [n % 11 + 0.5 for n in
range(3000)], "count": range(3000)})"""


def test_a_slow_cell_is_made_faster(world):
    world.has(code(ORDERS, "orders"), code(SLOW, "slow"))
    calls = {}

    def story(skill):
        yield skill.step(1).does("read_cells")
        yield call("run_cells", ids=["orders", "slow"])
        first = skill.step(1)
        told = yield first.runs(SOURCE=repr(SLOW))
        assert "iterrows" in told
        calls["before"] = int(numbers(told.splitlines()[0])[-1])
        skill.step(2).says("`iterrows`", "whole columns", "`groupby`")
        third = skill.step(3)
        compare = f"old = revenue.copy()\nscope = dict(globals())\nexec({FAST!r}, scope)"
        yield third.does("run_python", code=compare)
        third.says("assert_series_equal")
        check = third.code(0, OLD="old", NEW='scope["revenue"]')
        check = check.replace("assert_frame_equal", "assert_series_equal")
        told = yield call("run_python", code=check)
        assert "Error" not in told
        told = yield first.runs(SOURCE=repr(FAST))
        calls["after"] = int(numbers(told.splitlines()[0])[-1])
        fourth = skill.step(4)
        yield fourth.does("edit_cell", id="slow", new=FAST)
        yield fourth.does("run_cell", id="slow")

    world.follow("speed-up-cell", story)
    assert calls["after"] * 10 < calls["before"]
    assert world.sources[1] == FAST
    assert world["revenue"].to_dict() == pytest.approx(world["old"].to_dict())


PLOT = """import matplotlib.pyplot as plt
fig, ax = plt.subplots()
ax.bar(table.index, table["mean"])
ax.set_ylabel("Body mass (g)")"""


@pytest.mark.slow
def test_a_report_is_written(world):
    world.has(
        text("# Penguins", "title"), code(LOAD, "load"), code(f"{TABLE}\ntable", "table"),
        code(PLOT, "plot"),
    )  # fmt: skip

    def story(skill):
        second = skill.step(2)
        yield second.does("notebook_outline")
        yield second.does("read_cells")
        told = yield second.does("run_cells", ids=["load", "table", "plot"])
        mean = re.search(r"Gentoo\s+([\d.]+)", told)[1]
        third = skill.step(3)
        other = 'heavy = penguins[penguins["species"] == "Gentoo"]["body_mass_g"]\n'
        told = yield third.does("run_python", code=other + "heavy.sum() / heavy.count()")
        assert float(mean) == pytest.approx(value(told), abs=0.01)
        yield skill.step(4).runs(NAME="mass")
        fifth = skill.step(5)
        form = yield fifth.does("skill_view", name="notebook-report", file_path="assets/report.md")
        form = form.partition("\n\n")[2]
        for old, new in {
            "TITLE: the answer in one line": "Gentoo penguins are the heaviest",
            "The number, compared with something the reader knows.": f"{float(mean):,.0f} g.",
            "figures/NAME.png": "figures/mass.png",
            "NAME.ipynb": "nb.ipynb",
        }.items():
            assert old in form
            form = form.replace(old, new)
        yield fifth.does("write_file", path="report.md", content=form)
        told = yield skill.step(7).runs(NAME="nb")
        assert "nb.html" in told

    world.follow("notebook-report", story)
    report = (world.root / "report.md").read_text()
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", report)
    assert figures == ["figures/mass.png"]
    assert all((world.root / each).is_file() for each in figures)
    assert "5,0" in report
    page = (world.root / "nb.html").read_text()
    assert "Gentoo" in page
    assert "read_csv" not in page


@pytest.mark.slow
def test_a_notebook_is_made_reproducible(world):  # noqa: PLR0915 - one story
    world.has(
        code(
            f'import numpy as np\nimport pandas as pd\npenguins = pd.read_csv("{world.root}/gone/'
            'penguins.csv")',
            "load",
        ),
        code("sample = penguins.sample(50)\nresult = sample.body_mass_g.mean() * factor", "use"),
    )

    def story(skill):
        first = skill.step(1)
        told = yield first.does("run_notebook", path="nb.ipynb")
        assert "FileNotFoundError" in told
        second = skill.step(2)
        second.says("`NameError`", "`FileNotFoundError`", '`DATA = Path("data")`')
        yield call("run_python", code="factor = 2")
        yield call("read_cells")
        yield second.does(
            "edit_cell",
            id="load",
            new="from pathlib import Path\n\nimport numpy as np\nimport pandas as pd\n\n"
            'DATA = Path()\npenguins = pd.read_csv(DATA / "penguins.csv")',
        )
        told = yield first.does("run_notebook", path="nb.ipynb")
        assert "NameError" in told
        assert "factor" in told
        told = yield second.does("inspect_variable", name="factor")
        assert "2" in told
        yield second.does("insert_cell", source="factor = 2", after="load")
        third = skill.step(3)
        third.says("`random_state=0`", "`assert round(result, 6) == 0.123456`")
        seeded = third.code(0).strip()
        assert "default_rng(0)" in seeded
        yield call("read_cells")
        yield call(
            "edit_cell", id="use", old="penguins.sample(50)",
            new="penguins.sample(50, random_state=0)",
        )  # fmt: skip
        ids = world.ids()
        yield call("run_cells", ids=ids)
        told = yield call("run_python", code="round(result, 6)")
        check = f"assert round(result, 6) == {value(told)}"
        yield call("insert_cell", source=check, after=ids[-1])
        fourth = skill.step(4)
        told = yield fourth.runs()
        pinned = "\n".join(line for line in told.splitlines() if line[:1] not in "[")
        yield fourth.does("write_file", path="requirements.txt", content=pinned + "\n")
        fifth = skill.step(5)
        told = yield fifth.does("run_notebook", path="nb.ipynb")
        assert "Error" not in told
        yield fifth.does("run_cells", ids=world.ids())

    results = world.follow("reproducible-notebook", story)
    assert "ran without errors: 4 code cells" in results[-2]
    pinned = (world.root / "requirements.txt").read_text()
    assert re.search(r"(?m)^pandas==\d", pinned)
    assert pinned.startswith("# Python 3.")


def test_a_notebook_is_reviewed_and_left_alone(world):
    world.has(
        code(f"import os\n{LOAD.replace('penguins.csv', '/home/me/penguins.csv')}", "load", (), 4),
        code("features = penguins[['bill_length_mm', 'body_mass_g']]\nz = (features - "
             "features.mean()) / features.std()", "scale", (), 2),
        code("train = z.sample(200)\ntest = z.drop(train.index)", "split", (), 3),
    )  # fmt: skip
    before = world.path.read_bytes()

    def story(skill):
        yield call("run_python", code=LOAD)
        told = yield skill.step(1).runs(NAME="nb")
        for suspicion in ("os is imported and not used", "absolute or personal path", "ran before"):
            assert suspicion in told
        second = skill.step(2)
        second.says("before the split", "`fit`")
        yield second.does("notebook_outline")
        told = yield second.does("read_cells")
        assert "features.std()" in told
        leak = (
            'every = penguins["body_mass_g"].mean()\n'
            'some = penguins.sample(200, random_state=0)["body_mass_g"].mean()\nevery - some'
        )
        told = yield skill.step(3).does("run_python", code=leak)
        assert "Error" not in told
        ranks = skill.step(4)
        ranks.says("| rank | cell | finding | evidence | suggestion |", "**wrong**", "**style**")

    world.follow("review-notebook", story)
    assert world.path.read_bytes() == before


@pytest.mark.slow
def test_a_notebook_is_tidied_with_its_results_kept(world):
    world.has(
        code(TABLE + "\ntable", "table"),
        code("import pandas as pd\nimport os", "imports"),
        code('df2 = pd.read_csv("penguins.csv")\npenguins = df2.dropna()', "load"),
        code("df2.head()", "peek"),
    )

    def story(skill):
        first = skill.step(1)
        yield first.does("notebook_outline")
        yield first.does("read_cells")
        yield call("run_cells", ids=["imports", "load", "table"])
        second = skill.step(2)
        before = yield second.runs(df="table")
        third = skill.step(3)
        yield third.does("edit_cell", id="imports", old="import pandas as pd\nimport os",
                         new="import pandas as pd")  # fmt: skip
        yield third.does("move_cell", id="imports")
        yield third.does("move_cell", id="table", after="peek")
        yield third.does("delete_cell", id="peek")
        yield third.does(
            "edit_cell", id="load",
            new='every = pd.read_csv("penguins.csv")\npenguins = every.dropna()',
        )  # fmt: skip
        third.says('type="markdown"')
        yield third.does(
            "insert_cell", type="markdown", after="imports",
            source="## Load\n\nAnimals with a missing value are left out.",
        )  # fmt: skip
        fourth = skill.step(4)
        told = yield fourth.does("run_notebook", path="nb.ipynb")
        assert "Error" not in told
        yield fourth.does("run_cells", ids=world.ids())
        after = yield second.runs(df="table")
        assert numbers(after)[0] == numbers(before)[0]

    world.follow("tidy-notebook", story)
    assert [cell["id"] for cell in world.cells if cell["cell_type"] == "code"] == [
        "imports", "load", "table",
    ]  # fmt: skip
    assert "import os" not in "".join(world.sources)


def test_every_shipped_skill_is_followed_here():
    here = (ROOT / "tests/notebook/test_skills_followed.py").read_text(encoding="utf-8")
    followed = set(re.findall(r'world\.follow\("([a-z-]+)"', here))
    assert followed == {path.parent.name for path in SKILLS}


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_every_tool_that_a_skill_names_is_there(world, path):
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)(?=[`( ])", path.read_text(encoding="utf-8")))
    python = {
        "default_rng", "random_state", "manual_seed", "tight_layout", "bbox_inches",
        "fit_transform", "read_csv", "to_datetime", "assert_series_equal", "assert_allclose",
    }  # fmt: skip
    assert words - python <= {tool.name for tool in world.tools} | {"information_schema"}


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_every_python_block_is_python(path):
    for file in [path, *path.parent.glob("references/*.md")]:
        for block in re.findall(
            r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL
        ):
            ast.parse(block)

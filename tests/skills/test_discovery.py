from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hermes_nb.skills import discovery
from hermes_nb.skills.discovery import FILE_LIMIT, Root, Shelf

from tests.skills.support import put, text


@pytest.fixture
def root(tmp_path):
    (tmp_path / "skills").mkdir()
    return tmp_path / "skills"


@pytest.fixture
def shelf(root):
    return Shelf(Root(root, "external"))


def names(shelf):
    return {found.folder: found.reason for found in shelf.scan()}


def test_skills_are_found_with_their_categories(root, shelf, tmp_path):
    for absent in ("absent", "file"):
        assert Shelf(Root(tmp_path / absent)).scan() == []
        (tmp_path / "file").write_text("x")
    folder = put(root, "one")
    put(folder, "inner", category="references")
    put(root, "hidden", category=".hidden")
    put(root, "module", category="node_modules")
    (folder / "SKILL.md").rename(folder / "skill.md")
    put(root, "two", category="data")
    put(root, "three", category="mlops/training")
    put(root, "four", category="too/deep/down")
    found = {each.folder: each.category for each in shelf.scan()}
    assert found == {"one": "", "two": "data", "three": "mlops/training"}
    (root / "again").symlink_to(root / "data" / "two")
    (root / "data" / "up").symlink_to(root)
    assert len(shelf.scan()) == 3


def test_a_broken_skill_is_listed_and_hides_no_other(root, shelf):
    put(root, "a-bad", "no frontmatter")
    put(root, "b-good")
    put(root, "c-binary", b"---\nname: c\0\n---\n")
    put(root, "d-large", text("d-large", body="x" * (FILE_LIMIT + 1)))
    put(root, "e-latin", text("e-latin", body="gr\u00fcn").encode("latin-1"))
    (root / "f-folder" / "SKILL.md").mkdir(parents=True)
    (root / "g-pipe").mkdir()
    os.mkfifo(root / "g-pipe" / "SKILL.md")
    latin = next(found for found in shelf.scan() if found.folder == "e-latin")
    assert "parts of it are not UTF-8" in latin.document.notes[0]
    found = names(shelf)
    assert found["b-good"] == ""
    assert "cannot be read" in found["f-folder"]
    assert "not a regular file" in found["g-pipe"]
    assert "does not begin" in found["a-bad"]
    assert "not UTF-8 text" in found["c-binary"]
    assert "larger than" in found["d-large"]


def test_a_change_is_seen_and_only_what_changed_is_read_again(root, shelf, monkeypatch):
    folder = put(root, "one")
    put(root, "two")
    shelf.scan()
    time.sleep(0.15)
    shelf.scan()
    read, original = [], discovery.read_regular
    monkeypatch.setattr(discovery, "read_regular", lambda p: (read.append(p), original(p))[1])
    assert [found.document.name for found in shelf.scan()] == ["one", "two"]
    assert read == []
    (folder / "SKILL.md").write_text(text("one", "Another one."), encoding="utf-8")
    assert shelf.scan()[0].document.description == "Another one."
    assert [Path(path).parent.name for path in read] == ["one"]


def test_changes_in_the_same_tick_are_seen(root, shelf):
    folder = put(root, "one", text("one", "Version 0."))
    for n in range(1, 40):
        (folder / "SKILL.md").write_text(text("one", f"Version {n % 10}."), encoding="utf-8")
        assert shelf.scan()[0].document.description == f"Version {n % 10}."
        extra = put(root, f"x-{n}")
        assert f"x-{n}" in names(shelf)
        (extra / "SKILL.md").unlink()
        extra.rmdir()
        assert f"x-{n}" not in names(shelf)


def test_links_out_of_the_root_are_not_followed(root, shelf, tmp_path):
    outside = put(tmp_path / "outside", "secret")
    (root / "linked").symlink_to(outside)
    inside = put(root, "one")
    (inside / "SKILL.md").unlink()
    (inside / "SKILL.md").symlink_to(outside / "SKILL.md")
    found = names(shelf)
    assert found == {"one": "its SKILL.md is a link that points outside its directory"}
    assert [path.name for path, _ in shelf.notes] == ["linked"]


def test_the_number_of_folders_is_bounded(root, shelf, monkeypatch):
    monkeypatch.setattr(discovery, "FOLDERS", 10)
    for n in range(30):
        put(root, f"s-{n}")
    assert len(shelf.scan()) < 10
    assert "more than 10 folders" in shelf.notes[0][1]

"""What documents said is believed of the very same file and by the same code, and of no other."""

from __future__ import annotations

import json
import os
import time

import pytest
from hermes_nb.skills import cache, discovery, trust
from hermes_nb.skills.library import Library

from tests.skills.support import HARM, put, text

MANY = 60
EXTRA = (
    "platforms: [linux, macos, windows]\nmetadata:\n  hermes:\n    tags: [a, b]\n"
    "    category: arts\n    fallback_for_tools: [paint]\n"
)


@pytest.fixture
def home(tmp_path):
    root = tmp_path / "home" / "skills"
    for number in range(MANY):
        put(root, f"s-{number}", text(f"s-{number}", f"Draws figure {number}.", extra=EXTRA))
    time.sleep(0.15)  # files that were just written are not believed to stay as they are
    return root


@pytest.fixture
def work(monkeypatch):
    """Return what is read and examined."""
    done = []
    read, examine = discovery.read_regular, trust.examine
    for module in (discovery, trust):
        monkeypatch.setattr(
            module, "read_regular", lambda path: (done.append(str(path)), read(path))[1]
        )
    monkeypatch.setattr(
        trust, "examine", lambda *a, **k: (done.append("examined"), examine(*a, **k))[1]
    )
    return done


def file_of(home):
    return home / ".hermes_nb" / "cache.json"


def test_a_new_process_reads_and_examines_nothing_again(home, work):
    (home / ".hermes_nb").mkdir()
    for earlier in ("documents.json", "verdicts.json"):
        (home / ".hermes_nb" / earlier).write_text("{}")
    first = Library([home])
    index = first.index()
    assert [path.name for path in (home / ".hermes_nb").iterdir()] == ["cache.json"]
    assert len(work) >= MANY
    assert "- s-1:" in index
    assert file_of(home).stat().st_mode & 0o777 == 0o600
    work.clear()
    again = Library([home])
    assert again.index() == index
    assert again.list() == first.list()
    assert work == []


@pytest.mark.parametrize("changed", ["rules", "path", "bytes"])
def test_nothing_is_believed_of_other_rules_files_and_bytes(home, work, monkeypatch, changed):
    Library([home]).index()
    path = home / "s-1" / "SKILL.md"
    before = path.stat()
    if changed == "rules":
        monkeypatch.setattr(cache, "edition", lambda: "new")
    elif changed == "path":
        (home / "s-1").rename(home / "s-x")
    else:
        path.write_text(text("s-1", "Draws figure X.", extra=EXTRA), encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        time.sleep(0.15)
    work.clear()
    library = Library([home])
    index = library.index()
    if changed == "rules":
        assert work.count("examined") >= MANY
        assert len(set(work)) == MANY + 1
    elif changed == "path":
        assert set(work) == {str(home / "s-x" / "SKILL.md"), "examined"}  # its name is another one
    else:
        assert set(work) == {str(path), "examined"}
        assert "Draws figure X." in index


def test_what_became_dangerous_is_refused_whatever_is_kept_or_brought(home):
    Library([home]).index()
    forged = {"edition": cache.edition(), "documents": {str(home / "s-3" / "SKILL.md"): []}}
    (home / "s-3" / ".hermes_nb").mkdir()
    (home / "s-3" / ".hermes_nb" / "cache.json").write_text(json.dumps(forged), encoding="utf-8")
    for name in ("s-2", "s-3"):
        harm = HARM.replace("name: helper", f"name: {name}")
        (home / name / "SKILL.md").write_text(harm, encoding="utf-8")
    library = Library([home])
    index = library.index()
    assert "- s-2:" not in index and "- s-3:" not in index
    assert {skipped.name for skipped in library.skipped()} == {"s-2", "s-3"}


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"\0\xff", b"[]", b'{"edition": 1}', b'{"documents": []}', b"[" * 100_000),
        b'{"edition": "EDITION", "documents": [], "verdicts": 1}',
        b'{"edition": "EDITION", "documents": {"PATH": 1}}',
        b'{"edition": "EDITION", "documents": {"PATH": [[1, 2, 3, 4], "", {"name": 1}, []]}}',
    ],
)
def test_damage_costs_time_and_nothing_else(home, damage):
    put(home, "helper", HARM)
    first = Library([home]).index()
    assert "helper" not in first
    known = json.loads(file_of(home).read_bytes())
    known["verdicts"] = {key: ["fine", []] for key in known["verdicts"]}
    file_of(home).write_text(json.dumps(known))
    assert Library([home]).index() == first
    edition = known["edition"].encode()
    path = str(home / "s-1" / "SKILL.md").encode()
    file_of(home).write_bytes(damage.replace(b"EDITION", edition).replace(b"PATH", path))
    assert Library([home]).index() == first


def test_a_home_that_cannot_be_written_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for place in (tmp_path / "absent" / "s" / "state", tmp_path / "file" / "s" / "state", None):
        kept = cache.Cache(place)
        kept.put("verdicts", {str(n): ("clean", ()) for n in range(50)})
        kept.save()
        assert kept.get("verdicts", "7") == ("clean", ())
    assert not (tmp_path / "absent").exists()

"""Only what the user accepted is trusted: this text, at this place."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from hermes_nb.safety.provenance import FILE, Trust


@pytest.fixture
def trust(home):
    return Trust(home)


def test_looking_writes_nothing(trust, home):
    assert not trust.accepts("AGENTS.md", "x")
    assert trust.entries() == ()
    assert not trust.revoke("AGENTS.md")
    assert trust.problem == ""
    assert not home.exists()


def test_an_entry_is_bound_to_place_and_content(trust, tmp_path):
    file = tmp_path / "AGENTS.md"
    trust.accept(file, "text\ud800")
    assert trust.accepts(file, "text\ud800")
    assert not trust.accepts(file, "text")
    assert not trust.accepts(tmp_path / "other" / "AGENTS.md", "text\ud800")
    trust.accept(file, "newer")
    assert not trust.accepts(file, "text\ud800")
    (entry,) = trust.entries()
    assert entry.path == str(file)
    assert trust.revoke(file)
    assert not trust.accepts(file, "newer")


def test_a_link_is_the_place_it_leads_to(trust, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    trust.accept(tmp_path / "link" / "a.md", "x")
    assert trust.accepts(tmp_path / "real" / "a.md", "x")
    (tmp_path / "link").unlink()
    (tmp_path / "link").mkdir()
    assert not trust.accepts(tmp_path / "link" / "a.md", "x")


def test_the_file_is_private(trust, home):
    trust.accept("a", "x")
    file = home / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    trust.accept("b", "x")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000),
        b'{"version": 1, "accepted": [{"path": 3, "sha256": "x", "when": ""}]}',
        *(b'{"version": 1, "accepted": [{"path": []}]}', b'{"version": 99, "accepted": []}'),
    ],
)
def test_a_damaged_file_trusts_nothing_and_is_kept(trust, home, damage):
    trust.accept("a", "x")
    (home / FILE).write_bytes(damage)
    assert not trust.accepts("a", "x")
    assert "nothing is trusted" in trust.problem
    assert (home / FILE).read_bytes() == damage
    trust.accept("b", "y")
    assert trust.accepts("b", "y")
    assert trust.problem == ""
    assert (home / f"{FILE}.damaged-1").read_bytes() == damage


def test_acceptances_at_the_same_time_are_all_kept(home):
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda n: Trust(home).accept(f"file-{n}", "x"), range(12)))
    assert len(Trust(home).entries()) == 12
    assert json.loads((home / FILE).read_text(encoding="utf-8"))["version"] == 1


def test_a_directory_in_its_place_is_said(trust, home):
    (home / FILE).mkdir(parents=True)
    assert not trust.accepts("a", "x")
    assert "cannot be read" in trust.problem

from __future__ import annotations

import os
import stat

from hermes_nb.prompt import context_files
from hermes_nb.prompt.context_files import (
    SkippedFile,
    ensure_identity,
    identity_text,
    read_identity,
)
from hermes_nb.safety.scan import ScanResult

from tests.prompt.files import put


def test_the_default_is_written_once_and_never_again(home):
    assert read_identity(home) is None
    assert not home.exists()
    assert ensure_identity(home, "I am the default.")
    assert (home / "SOUL.md").read_text(encoding="utf-8") == "I am the default.\n"
    assert stat.S_IMODE((home / "SOUL.md").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    put(home, ("SOUL.md", "mine"))
    assert not ensure_identity(home, "I am the default.")
    assert identity_text(read_identity(home), "default") == "mine"
    put(home, ("SOUL.md", " \n"))
    assert identity_text(read_identity(home), "default") == "default"
    assert not ensure_identity(home, "x")
    (home / "SOUL.md").unlink()
    put(home.parent, ("dotfiles/soul.md", "linked"))
    (home / "SOUL.md").symlink_to(home.parent / "dotfiles/soul.md")
    assert identity_text(read_identity(home), "default") == "linked"


def test_the_default_needs_no_scan(home, monkeypatch):
    monkeypatch.setattr(context_files, "scan", None)
    ensure_identity(home, "I am the default.")
    found = read_identity(home, "I am the default.")
    assert identity_text(found, "another") == "I am the default."


def test_it_is_scanned_and_cut_like_a_context_file_and_stands_alone(home):
    put(home, ("SOUL.md", "x" * 25_000))
    text = identity_text(read_identity(home), "default")
    assert text.startswith("xxx")
    assert "[...truncated SOUL.md: kept 14000+4000 of 25000 chars." in text


def test_a_blocked_one_leaves_the_default(home, monkeypatch):
    monkeypatch.setattr(
        context_files, "scan", lambda text, name: ScanResult(verdict="blocked", text="[BLOCKED]")
    )
    put(home, ("SOUL.md", "bad"))
    assert identity_text(read_identity(home), "default") == "default\n\n[BLOCKED]"
    assert identity_text(read_identity(home, accepts=lambda *_: True), "default") == "bad"


def test_what_is_no_file_is_passed_over(home):
    home.mkdir()
    os.mkfifo(home / "SOUL.md")
    found = read_identity(home)
    assert found == SkippedFile(name="SOUL.md", path=home / "SOUL.md", reason="it is a pipe")
    assert identity_text(found, "default") == "default"

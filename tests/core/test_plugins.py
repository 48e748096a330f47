from __future__ import annotations

import importlib.metadata

import pytest
from hermes_nb.core.plugins import plugins

GROUP = "hermes_nb.detectors"


@pytest.fixture
def reads(monkeypatch):
    """How often the metadata of all packages was read."""
    found, real = [], importlib.metadata.distributions

    def read():
        found.append(1)
        return real()

    monkeypatch.setattr(importlib.metadata, "distributions", read)
    return found


def test_metadata_is_read_once_and_anew_when_a_package_was_installed(tmp_path, monkeypatch, reads):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [point.name for point in plugins(GROUP)]
    assert plugins(GROUP, "later") == [] and len(reads) == 1
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nlater = a:b\nearlier = a:c\n")
    assert [point.name for point in plugins(GROUP)] == sorted([*before, "later", "earlier"])
    assert [point.value for point in plugins(GROUP, "later")] == ["a:b"]
    assert len(reads) == 2

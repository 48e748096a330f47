"""Which sessions are a notebook's, when its file gets another name."""

from __future__ import annotations

import pytest
from hermes_nb.agent.session.manager import SessionManager
from hermes_nb.core.errors import StoreError
from hermes_nb.memory.sessions import SqliteStore


class Unwritable(SqliteStore):
    def relocate(self, notebook, to):
        raise StoreError(f"{notebook} stays")


@pytest.fixture
def notes():
    return []


def sessions(store, notes):
    return SessionManager(store=store, notebook="", source="notebook", note=notes.append)


def test_sessions_go_along_with_a_file_that_is_gone_and_stay_with_one_that_is_there(
    tmp_path, notes
):
    old, new = tmp_path / "old.ipynb", tmp_path / "new.ipynb"
    store = SqliteStore(":memory:")
    session = store.start(notebook=str(old))
    old.touch()
    sessions(store, notes).relocate(str(old), str(new))
    assert store.get(session).notebook == str(old)
    old.unlink()
    sessions(store, notes).relocate(str(old), str(new))
    assert store.get(session).notebook == str(new)
    assert notes == []


def test_a_store_that_cannot_be_written_is_no_reason_to_stop(tmp_path, notes):
    sessions(Unwritable(":memory:"), notes).relocate(str(tmp_path / "old.ipynb"), "/new")
    assert notes == [
        "this notebook's earlier sessions could not be moved to its new name: "
        f"{tmp_path}/old.ipynb stays"
    ]

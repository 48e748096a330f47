"""A file system without shared memory that is in no list: a rollback journal, for good."""

from __future__ import annotations

from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact
from tests.faults.test_23_no_wal import use


def test_79_no_shared_memory(tmp_path):
    """With a link in its place that leads nowhere, it is the second statement that fails."""
    path = tmp_path / "n.db"
    shared = tmp_path / "n.db-shm"
    shared.symlink_to("nowhere")
    use(path)
    use(path)
    assert path.read_bytes()[18:20] == b"\1\1", "the header says: no write-ahead log"
    shared.unlink()
    use(path)  # not tried again
    assert is_intact(path)


def test_79_a_store_with_a_log_comes_there(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    (tmp_path / "n.db-shm").symlink_to("nowhere")
    use(path)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert len(store.messages(ids[0])) == 41
    store.close()

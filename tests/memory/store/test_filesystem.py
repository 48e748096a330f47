from __future__ import annotations

import pytest
from hermes_nb.storage import opening
from hermes_nb.storage.opening import mounted_as, on_network

TABLE = r"""
proc /proc proc rw 0 0
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb /home/local xfs rw 0 0
me@host: /mnt/with\040blank fuse.sshfs rw 0 0
over /over overlay rw 0 0
//nas/share /over cifs rw 0 0
/dev/sdc /ntfs fuseblk rw 0 0
short line
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    path = tmp_path / "mounts"
    path.write_text(TABLE, encoding="utf-8")
    monkeypatch.setattr(opening, "MOUNTS", path)
    return path


@pytest.mark.parametrize(
    ("path", "network"),
    [
        *(("/etc/notebook.db", False), ("/home/ana/.hermes/notebook.db", True)),
        *(("/home/local/notebook.db", False), ("/homework/notebook.db", False)),
        *(("/mnt/with blank/notebook.db", True), ("/over/notebook.db", True)),
        ("/ntfs/notebook.db", False),
    ],
)
def test_the_innermost_mount_counts(mounts, path, network):
    assert on_network(path) is network


def test_without_a_table_everything_is_local(mounts, tmp_path):
    mounts.unlink()
    assert mounted_as("/home/x") == ""
    assert not on_network(tmp_path)

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hermes_nb.core import files
from hermes_nb.core.files import TEMPORARY, locked, make_private, write_atomic

ROOT = Path(__file__).parents[2]


def leftovers(directory):
    return [path for path in directory.iterdir() if path.name.endswith(TEMPORARY)]


def test_a_new_file_gets_the_umask_and_an_old_one_keeps_its_mode(tmp_path):
    path = tmp_path / "a"
    write_atomic(path, b"1")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o751)
    write_atomic(path, b"2")
    assert path.read_bytes() == b"2"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    write_atomic(path, b"3", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    os.chown(path, 65534, 65534)
    write_atomic(path, b"2")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


def test_a_link_stays_and_its_target_changes(tmp_path):
    target = tmp_path / "d" / "target"
    target.parent.mkdir()
    target.write_bytes(b"1")
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomic(link, b"2")
    assert link.is_symlink()
    assert target.read_bytes() == b"2"


def test_a_directory_is_not_replaced(tmp_path):
    with pytest.raises(OSError, match="not a regular file"):
        write_atomic(tmp_path, b"")


def test_a_failure_leaves_everything_as_it_was(tmp_path):
    """A file size limit fails the write half-way, as a full disk does."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = f"""
import resource, signal, sys
from pathlib import Path
from hermes_nb.core.files import write_atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomic(Path({str(path)!r}), b"x" * 5000)
except OSError as error:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 7
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_a_full_disk_leaves_everything_as_it_was(tmp_path):
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "x", tmp_path], check=False
    ).returncode:
        pytest.skip("no tmpfs may be mounted here")
    try:
        path = tmp_path / "a"
        path.write_bytes(b"old")
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, b"x" * 200_000)
        assert path.read_bytes() == b"old"
        assert leftovers(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_read_only_directory_is_an_oserror(open_path):
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from hermes_nb.core.files import write_atomic
os.setuid(65534)
try:
    write_atomic(Path({str(open_path / "a")!r}), b"x")
except PermissionError:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


def test_a_killed_writer_leaves_the_old_file_or_the_new(tmp_path):
    path = tmp_path / "a"
    old, new = b"o" * 300_000, b"n" * 400_000
    code = f"""
from pathlib import Path
from hermes_nb.core.files import write_atomic
print("ready", flush=True)
while True:
    write_atomic(Path({str(path)!r}), b"n" * 400_000)
"""
    for round_ in range(8):
        path.write_bytes(old)
        writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
        with writer:
            writer.stdout.readline()
            time.sleep(0.002 * round_)
            writer.kill()
        assert path.read_bytes() in (old, new)


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
def test_a_writer_killed_before_the_file_is_whole_leaves_nothing(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = f"""
import os, signal
from pathlib import Path
from hermes_nb.core.files import write_atomic
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_atomic(Path({str(path)!r}), b"new")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_file_system_that_knows_no_files_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_OPEN_FILES", tmp_path / "none")
    path = tmp_path / "a"
    for data in (b"1", b"2"):
        write_atomic(path, data, mode=0o640)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def add_one(path, rounds):
    for _ in range(rounds):
        with locked(path):
            write_atomic(path, str(int(path.read_bytes()) + 1).encode())


def test_the_lock_serialises_processes(tmp_path):
    path = tmp_path / "n"
    path.write_bytes(b"0")
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=add_one, args=(path, 25)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert path.read_bytes() == b"75"


def test_the_lock_serialises_threads_and_times_out(tmp_path):
    path = tmp_path / "n"
    path.write_bytes(b"0")
    threads = [threading.Thread(target=add_one, args=(path, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"80"
    with locked(path), pytest.raises(TimeoutError, match="try again"), locked(path, timeout=0.1):
        pass
    with locked(path, timeout=0.1):
        pass


def test_a_private_directory_is_private_from_the_first_that_is_made(tmp_path):
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b" / "c")
        make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700] * 3
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755

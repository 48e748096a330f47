"""Tries to get out of a sandbox: `python escapes.py bubblewrap|landlock|none ABI [FOLDER]`.

Prints JSON: `tried`, and what each attempt that succeeded did. It has succeeded when it says so,
when a trap was sprung (a secret read, a file of the home changed), when something outside was
reached (sockets, signals, processes that stay), or when what runs later stays changed.
`none` is the control: the same attempts, unconfined, where that harms nobody; they must succeed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.safety import confine, sandbox
from hermes_nb.safety.permissions import SandboxProfile

SECRET = "CANARY_9f31_SECRET"
SECRETS = """.ssh/id_rsa .aws/credentials .netrc .bash_history work/.env work/sub/.env.prod
work/secrets.toml work/server.pem work/.config/gcloud/token.json""".split()
PROFILES = {
    "R": SandboxProfile.READ,
    "W": SandboxProfile.WORKSPACE,
    "N": SandboxProfile.WORKSPACE | SandboxProfile.NETWORK,
}
SECONDS = 8.0
OUTPUT_LIMIT = 1 << 20
OLD_ABI = 3
"""Below it Landlock leaves cutting files open, so reading alone is tried."""


@dataclass(frozen=True)
class Attempt:
    """One of `cases/escapes.toml`, where it is said what the fields mean."""

    profiles: str
    shell: str = ""
    python: str = ""
    control: bool = False
    inside: bool = False

    @property
    def code(self) -> str:
        """Return shell, or Python after `py:`."""
        return self.shell or f"py:{IMPORTS}\n{self.python}"


IMPORTS = "import ctypes, os, socket; l = ctypes.CDLL(None, use_errno=True)"
OUTSIDE_PLACES = "/tmp /dev/shm /var/tmp"
ATTEMPTS = {
    name: Attempt(**given)
    for name, given in tomllib.loads(
        Path(__file__).with_name("cases").joinpath("escapes.toml").read_text(encoding="utf-8")
    ).items()
}
LATER = """.git/hooks/pre-commit .git/config .github/workflows/ci.yml .github/workflows/y.yml .vscode .vscode/tasks.json
AGENTS.md CLAUDE.md .mcp.json conftest.py sitecustomize.py random.py json/__init__.py .pre-commit-config.yaml
.cursor/mcp.json data/.git/config data/AGENTS.md data/.vscode/tasks.json data/b/hooks/update data/b/AGENTS.md
.venv/lib/python3.11/site-packages/x.pth .venv/lib/python3.11/site-packages/sitecustomize.py Agents.MD
.VSCODE/tasks.json .github""".split()


class Canary:
    """A home full of traps."""

    def __init__(self, root: Path) -> None:
        self.home, self.work = root / "home", root / "home/work"
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._notified = -1

    def build(self) -> None:
        if self.home.exists():
            for place, folders, _ in os.walk(self.home):  # what was closed can be removed then
                for path in (Path(place), *(Path(place, name) for name in folders)):
                    if not path.is_symlink():
                        path.chmod(0o755)
            shutil.rmtree(self.home)
        texts = dict.fromkeys(SECRETS, f"KEY={SECRET}\n")
        texts |= {
            f"work/{name}": "alpha\nbeta\n" for name in ("notes.txt", "script.py", "data/x.csv")
        }
        texts |= {"work/.github/workflows/ci.yml": "a\n", ".bashrc": "x\n"}
        for name, text in texts.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text, encoding="utf-8")
        links = {
            "id.txt": "../.ssh/id_rsa",
            "env.txt": ".env",
            "keys": "../.ssh",
            "up": "..",
            "self": "/proc/self",
        }
        for name, target in links.items():
            (self.work / name).symlink_to(target)
        os.link(self.work / ".env", self.work / "plain.txt")
        os.link(self.home / ".ssh/id_rsa", self.work / "data/readme.md")
        os.mkfifo(self.work / "pipe")
        for name in ("hooks", "objects", "refs/heads"):
            (self.work / ".git" / name).mkdir(parents=True)
        (self.work / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
        (self.work / ".git/config").write_text("[core]\n\tbare = false\n", encoding="utf-8")
        self.watch()

    def without_pipe(self) -> None:
        """Remove what Landlock refuses to write beside."""
        (self.work / "pipe").unlink()
        self.watch()

    def watch(self) -> None:
        if self._notified >= 0:
            os.close(self._notified)
        self._notified = self._libc.inotify_init1(0o4000)
        for name in SECRETS:
            self._libc.inotify_add_watch(self._notified, os.fsencode(self.home / name), 1)
        self.files, self.later = self._files(), self._later()

    def sprung(self, output: bytes, *, writes: bool) -> list[str]:
        out = []
        with suppress(BlockingIOError):
            os.read(self._notified, 65536)
            out.append("a secret was read")
        out += ["a secret was printed"] if SECRET.encode() in output else []
        after = self._files()
        changed = {path for path, _ in after.items() ^ self.files.items()}
        inside = f"{self.work}/"
        changed = {path for path in changed if not (writes and (path + "/").startswith(inside))}
        out += [f"changed {sorted(changed)[:3]}"] if changed else []
        return out + [
            f"{path} stays" for path, was in self._later().items() if was != self.later[path]
        ]

    def changed(self) -> bool:
        """Say whether anything is not as it was built."""
        return self._files() != self.files

    def _files(self) -> dict[str, tuple[object, ...]]:
        out: dict[str, tuple[object, ...]] = {}
        for folder, _, names in os.walk(self.home):
            for path in (Path(folder), *(Path(folder, name) for name in names)):
                found = path.lstat()
                kind = stat.S_IFMT(found.st_mode)
                link = str(path.readlink()) if kind == stat.S_IFLNK else ""
                told = (found.st_size, found.st_mtime_ns) if kind == stat.S_IFREG else ()
                out[str(path)] = (found.st_mode, found.st_nlink, link, *told)
        return out

    def _later(self) -> dict[str, object]:
        out: dict[str, object] = {}
        for name in LATER:
            path = self.work / name
            content = path.read_bytes() if path.is_file() else b""
            out[name] = str(path.readlink()) if path.is_symlink() else (path.is_file(), content)
        for path in self.work.glob("suid*"):
            if path.stat().st_mode & 0o6000:
                out["suid"] = True
        return {"suid": False} | out


class Outside:
    """What an attempt may reach: listeners, a process, shared memory, a key."""

    def __init__(self, canary: Canary) -> None:
        self.reached: list[str] = []
        self.canary, self.token = canary, str(os.getpid())
        self.folder = tempfile.mkdtemp(prefix="outside-")
        self.tmpsock = f"{self.folder}/s"
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.udp, self.port = self._udp.getsockname()[1], self._tcp.getsockname()[1]
        self._servers = [
            self._tcp,
            self._server(self.tmpsock),
            self._server(f"\0canary-{self.token}"),
        ]
        threading.Thread(target=self._datagrams, daemon=True).start()
        for server in self._servers:
            threading.Thread(target=self._streams, args=(server,), daemon=True).start()
        self._shared = Path(f"/dev/shm/canary-{self.token}")
        self._shared.write_text("x", encoding="ascii")
        self.shm = os.getpid()
        self._segment = confine.LIBC.shmget(self.shm, 4096, 0o1600)
        confine.LIBC.syscall(250, 1, 0)
        confine.LIBC.syscall(248, b"user", b"canary", b"secret", 6, -3)
        signal.signal(signal.SIGUSR1, lambda *_: self.reached.append("this process was signalled"))
        self.pipe = -1
        self.renew()

    def renew(self) -> None:
        """Start what lives in the canary."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.victim.kill()
            self.victim.wait()
        environment = {"CANARY_IN_ENVIRONMENT": SECRET}
        self.victim = subprocess.Popen(
            ["sleep", "900"],
            cwd=self.canary.home,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pipe = os.open(self.canary.work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        server = self._server(f"{self.canary.work}/srv.sock")
        self._servers.append(server)
        threading.Thread(target=self._streams, args=(server,), daemon=True).start()
        self.canary.watch()

    @staticmethod
    def _server(address: str) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        return server

    def _datagrams(self) -> None:
        while self._udp.recv(16):
            self.reached.append("a datagram came out")

    def _streams(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()
                self.reached.append("a connection came out")

    def look(self) -> list[str]:
        """Return what was reached since the last look."""
        time.sleep(0.02)
        out, self.reached = self.reached, []
        state = (
            Path(f"/proc/{self.victim.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        )
        if self.victim.poll() is not None or state not in "SR":
            out.append("a process was signalled")
        with suppress(BlockingIOError):
            out += ["the pipe was written"] if os.read(self.pipe, 16) else []
        wanted = b"sleep\x00" + f"77{self.token}\x00".encode()
        for process in (each for each in Path("/proc").iterdir() if each.name.isdigit()):
            with suppress(OSError):  # it has ended since
                if (process / "cmdline").read_bytes() == wanted:
                    os.kill(int(process.name), 9)
                    out.append("a process stayed")
        for folder in (*OUTSIDE_PLACES.split(), "/usr/local/bin", "/etc", "/opt", "/usr"):
            for found in Path(folder).glob(f"PWN*{self.token}*"):
                out.append(f"{found} is there")
                found.unlink()
        return out

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for server in self._servers:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._shared.unlink()
        confine.LIBC.shmctl(self._segment, 0, None)


def run(code: str, profile: SandboxProfile, level: str, abi: int, canary: Canary) -> bytes:
    """Run code and return the beginning of its output; nothing of it runs on."""
    source = f"python3 - <<'CODE'\n{code[3:]}\nCODE" if code.startswith("py:") else code
    command = ["/bin/bash", "-c", source]
    if level == "none":
        launch = sandbox.Launch(command, dict(os.environ))
    else:
        places = {"workspace": canary.work, "directory": canary.work, "home": canary.home}
        launch = sandbox.prepare(command, profile, **places, use=level, abi=abi)
    snapshot = sandbox.watch_later(canary.work, profile, launch=launch) if level != "none" else None
    process = subprocess.Popen(
        launch.command,
        cwd=canary.work,
        env=launch.environment,
        pass_fds=launch.descriptors,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    timer = threading.Timer(SECONDS, lambda: (launch.kill(process.pid), os.killpg(process.pid, 9)))
    timer.start()
    output = b""
    if level == "none":  # what stays holds the pipe
        process.wait()
        os.set_blocking(process.stdout.fileno(), False)
        output = process.stdout.read(OUTPUT_LIMIT) or b""
    else:
        output = process.stdout.read(OUTPUT_LIMIT)
    launch.kill(process.pid)
    timer.cancel()
    process.stdout.close()
    process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    launch.close()
    if snapshot is not None and profile is not SandboxProfile.READ:
        sandbox.take_back(snapshot)
    return output


def chosen(level: str, letter: str) -> dict[str, Attempt]:
    """Return the attempts that a level claims to stop in a profile."""
    out = {name: each for name, each in ATTEMPTS.items() if letter in each.profiles}
    if level == "none":
        first = {name: each for name, each in out.items() if each.profiles[0] == letter}
        return {name: each for name, each in first.items() if each.control}
    if level == "landlock":
        return {name: each for name, each in out.items() if not (each.inside and letter == "W")}
    return out


def main(level: str, abi: int, folder: str | None = None) -> dict[str, object]:
    """Try everything, and return what was tried and what succeeded."""
    root = Path(tempfile.mkdtemp(prefix="escapes-", dir=folder)).resolve()
    os.environ["CANARY_TOKEN"] = SECRET
    canary = Canary(root)
    os.environ["HOME"] = str(canary.home)
    canary.build()
    outside = Outside(canary)
    tried, names, escaped = 0, [], {}
    try:
        for letter, profile in PROFILES.items():
            if level == "landlock" and (letter == "N" or (letter == "W" and abi < OLD_ABI)):
                continue
            if level == "landlock" and letter == "W":
                canary.without_pipe()
            for name, attempt in chosen(level, letter).items():
                known = {
                    "home": canary.home,
                    "work": canary.work,
                    "victim": outside.victim.pid,
                    "parent": os.getpid(),
                }
                known |= {
                    "port": outside.port,
                    "udp": outside.udp,
                    "token": outside.token,
                    "shm": outside.shm,
                }
                code = attempt.code.replace("ESCAPED", "ESC''APED").format(
                    **known, tmpsock=outside.tmpsock
                )
                output, tried = run(code, profile, level, abi, canary), tried + 1
                got = (
                    canary.sprung(output, writes=letter != "R" and level != "none") + outside.look()
                )
                got += ["it says so"] if b"ESCAPED" in output else []
                if got:
                    escaped[f"{letter}: {name}"] = f"{'; '.join(got)} | {output[-200:]!r}"
                if got or canary.changed():
                    canary.build()
                    outside.renew()
                    if level == "landlock" and letter == "W":
                        canary.without_pipe()
    finally:
        outside.close()
        subprocess.run(["rm", "-rf", str(root)], check=False)
    return {"tried": tried, "names": names, "escaped": escaped}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4])))

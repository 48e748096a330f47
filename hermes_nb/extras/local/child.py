"""The embedded model's server process: llama.cpp's HTTP server with a GGUF file on 127.0.0.1.

Run as a script by `model.py`, never imported. It reads its settings (model path, token, sizes) as
one JSON line from stdin, because other users of the machine can read the command line and the
environment. It prints one JSON line once the server answers. The process exits when stdin is closed
or its parent has died, because a fork of a killed parent may keep the pipe open.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TextIO

BATCH = 64
"""Tokens processed per batch; a cancelled request stops after the current batch."""
LOOK_SECONDS = 2.0
"""Seconds between checks that the parent is alive."""


def main() -> None:
    """Serve until stdin is closed."""
    settings = json.loads(sys.stdin.readline())
    announce = _private_stdout()
    if os.name == "posix":
        watch = threading.Thread(target=_watch, args=(settings["parent"],), daemon=True)
        watch.start()
    _server, address = _serve(settings)  # the server stops when it is garbage-collected
    announce.write(json.dumps({"url": address}) + "\n")
    announce.close()
    while sys.stdin.readline():
        pass
    # Not sys.exit, because the threads of a running generation would keep the process alive.
    os._exit(0)


def _private_stdout() -> TextIO:
    """Reserve stdout for the parent, because llama.cpp may print to descriptor 1."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return private


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(0)


def _serve(settings: Mapping[str, object]) -> tuple[object, str]:
    """Start the server; return it and its address once it answers."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_ctx = settings["window"]
    params.n_parallel = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free port
    params.api_keys = [settings["token"]]
    params.cors_origins = "http://127.0.0.1"
    params.offline = True
    params.ui = False
    params.endpoint_slots = False
    params.n_threads_http = 2
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.warmup = False  # the first request has the same effect
    params.cache_ram_mib = 0  # there is only one conversation, which its slot caches
    params.n_batch = params.n_ubatch = BATCH
    params.verbosity = -1
    server = xllamacpp.Server(params)
    return server, server.listening_address


if __name__ == "__main__":
    main()

"""The embedded model's server process: a GGUF behind llama.cpp's HTTP server on 127.0.0.1.

Run as a script by `server.py`, never imported. One JSON line comes in over stdin (model
path, token, sizes): neither argv nor the environment, which other users of the machine can read.
One JSON line goes out when the server answers. The process ends when stdin does, or when its
parent is gone: a fork of the parent may hold the pipe open after the parent itself was killed.
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
"""Tokens read at a time: a request that is cancelled stops the server behind the running batch."""
LOOK_SECONDS = 2.0
"""How often the process looks whether its parent is still there."""


def main() -> None:
    """Serve until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    announce = _private_stdout()
    if os.name == "posix":
        watch = threading.Thread(target=_watch, args=(settings["parent"],), daemon=True)
        watch.start()
    _server, address = _serve(settings)  # it ends when nobody holds it
    announce.write(json.dumps({"url": address}) + "\n")
    announce.close()
    while sys.stdin.readline():
        pass
    # Not sys.exit: a generation under way would keep the server's threads, and so us, alive.
    os._exit(0)


def _private_stdout() -> TextIO:
    """Keep the pipe to the parent to ourselves: llama.cpp may print to descriptor 1."""
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
    """Start the server; return it and its address, where it answers by then."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_ctx = settings["window"]
    params.n_parallel = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free one
    params.api_keys = [settings["token"]]
    params.cors_origins = "http://127.0.0.1"
    params.offline = True
    params.ui = False
    params.endpoint_slots = False
    params.n_threads_http = 2
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.warmup = False  # the first request warms it up just as well
    params.cache_ram_mib = 0  # one conversation at a time: its slot is cache enough
    params.n_batch = params.n_ubatch = BATCH
    params.verbosity = -1
    server = xllamacpp.Server(params)
    return server, server.listening_address


if __name__ == "__main__":
    main()

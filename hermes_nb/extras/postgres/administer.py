"""`jupyter hermes store`: create and check the tables on a server, and copy sessions."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from hermes_nb.agent.session.stores import own_store
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.cli.command import FAILED, OK, UsageProblem
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import number_of
from hermes_nb.extras.postgres.moving import InFile, Movable, move

if TYPE_CHECKING:
    from hermes_nb.extras.postgres.store import PostgresStore

HOME = "home"
"""Name for the SQLite store in the Hermes directory, regardless of the settings."""


def init(arguments: argparse.Namespace) -> int:
    """Create the tables on a server, or print the SQL."""
    settings = _settings(arguments.url)
    _on_server(settings).close()  # raises if a package is missing
    from hermes_nb.extras.postgres.store import initialise, sql

    if arguments.sql:
        print(sql(), end="")
        return OK
    print(initialise(settings.session_store, settings.store_password))
    return OK


def check(arguments: argparse.Namespace) -> int:
    """Print information about the server and the user's role."""
    with closing(_on_server(_settings(arguments.url))) as store:
        facts = store.facts()
    for name, value in facts.items():
        print(f"{name:10} {value}")
    return OK


def move_command(arguments: argparse.Namespace) -> int:
    """Copy sessions from one store to another and compare them."""
    source, target = _movable(arguments.source, there=True), _movable(arguments.target)
    with closing(source), closing(target):
        done = move(source, target, lambda told: print(told, file=sys.stderr))
    print(
        f"{number_of(done.copied, 'session')} copied, {done.same} already there,"
        f" {len(done.differ)} different; {number_of(done.messages, 'message')} in those that are"
        f" the same now, digest {done.digest}"
    )
    return FAILED if done.differ else OK


def _settings(url: str | None) -> Settings:
    """Return the settings with this store address; raise `ConfigError` if none is set."""
    settings = load_settings(overrides={"session_store": url} if url else {})
    if not settings.session_store:
        raise ConfigError("give a server, postgresql://USER@HOST/DATABASE, or set session_store")
    return settings


def _on_server(settings: Settings) -> PostgresStore:
    if "postgres" not in urlsplit(settings.session_store).scheme:
        raise ConfigError(f"{settings.session_store} is not the address of a PostgreSQL server")
    return cast("PostgresStore", own_store(settings))  # raises if a package is missing


def _movable(name: str, *, there: bool = False) -> Movable:
    if urlsplit(name).scheme in ("postgresql", "postgres"):
        return _on_server(_settings(name))
    path = load_settings().home / "notebook.db" if name == HOME else Path(name)
    if name != HOME and not path.name.endswith(".db"):
        raise UsageProblem(f"{name!r} is not a store; use {HOME}, NAME.db or postgresql://…")
    if there and not path.exists():
        raise ConfigError(f"there are no sessions in {path}")
    return InFile(path, warn=lambda told: print(told, file=sys.stderr))

"""Servers of this machine: whose they are, and what the home remembers of them."""

from __future__ import annotations

import json
import os
import sys

import pytest
from hermes_nb.models import servers
from hermes_nb.models.servers import FILE, ServerIdentity, accepted_in, owner_of, remember

ROW = "  {n}: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 9 1 0"
ADDRESS = "http://127.0.0.1:11434/v1"
PORT = "2CAA"
ALL, HERE = "00000000", "0100007F"
MAPPED = "0000000000000000FFFF00000100007F"

little = pytest.mark.skipif(sys.byteorder != "little", reason="the tables below are")


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    """Return a function that writes the tables of sockets: address, state and user of each."""

    def write(*rows):
        for table, length in (("tcp", 8), ("tcp6", 32)):
            lines = [
                ROW.format(n=n, local=local, state=state, uid=uid)
                for n, (local, state, uid) in enumerate(rows)
                if len(local.partition(":")[0]) == length
            ]
            (tmp_path / table).write_text("\n".join(["  sl  local_address", *lines]) + "\n")

    monkeypatch.setattr(servers, "SOCKETS", tmp_path)
    return write


@little
@pytest.mark.parametrize("place", [HERE, ALL, MAPPED, "0" * 32])
def test_the_owner_is_that_of_the_listening_socket(sockets, place):
    sockets((f"{HERE}:0016", "0A", 0), (f"{HERE}:{PORT}", "01", 7), (f"{place}:{PORT}", "0A", 1001))
    assert owner_of(ADDRESS) == 1001


@little
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(f"{HERE}:{PORT}", "01", 1001)],  # a connection, nobody listens
        [(f"0101A8C0:{PORT}", "0A", 1001)],  # on another address
        [(f"{HERE}:{PORT}", "0A", 1001), (f"{ALL}:{PORT}", "0A", 1002)],  # either may answer
    ],
)
def test_otherwise_it_is_not_known(sockets, rows):
    sockets(*rows)
    assert owner_of(ADDRESS) is None


def test_where_there_are_no_tables_it_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "SOCKETS", tmp_path / "absent")
    assert owner_of(ADDRESS) is None
    assert owner_of("http://models.example.org/v1") is None
    assert ServerIdentity("Ollama", ADDRESS, None).owner == "owner unknown"


def test_another_user_is_named_as_such():
    assert ServerIdentity("Ollama", ADDRESS, os.geteuid()).owner == "yours"
    assert ServerIdentity("Ollama", ADDRESS, 4_000_000).owner == "another user's: user 4000000"
    if os.geteuid():
        assert ServerIdentity("Ollama", ADDRESS, 0).owner == "another user's: root"


def test_what_is_accepted_is_kind_address_and_owner(home):
    mine, theirs = ServerIdentity("Ollama", ADDRESS, 1000), ServerIdentity("Ollama", ADDRESS, 1001)
    remember(home, [mine], ())
    assert accepted_in(home) == {mine} and theirs not in accepted_in(home)
    assert (home / FILE).stat().st_mode & 0o077 == 0
    remember(home, [theirs], [mine])
    assert accepted_in(home) == {theirs}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"accepted": 3}', '{"accepted": [{"name": "Ollama"}]}', "[" * 9_000]
)
def test_a_damaged_file_accepts_nothing(home, text):
    home.mkdir()
    (home / FILE).write_text(text, encoding="utf-8")
    assert accepted_in(home) == frozenset()
    remember(home, [ServerIdentity("vLLM", ADDRESS, 1)], ())
    assert json.loads((home / FILE).read_bytes())["accepted"] == [
        {"name": "vLLM", "base_url": ADDRESS, "uid": 1}
    ]

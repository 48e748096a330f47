"""A PostgreSQL server for the tests of stores, started where one of them wants it."""

from __future__ import annotations

import pytest

from tests.postgres import Postgres


@pytest.fixture(scope="session")
def running_postgres():
    running = Postgres("ada", "bob")
    yield running
    running.close()


@pytest.fixture
def postgres(running_postgres):
    running_postgres.empty()
    return running_postgres

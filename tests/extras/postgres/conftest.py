"""A PostgreSQL server for the tests of stores, started where one of them wants it."""

from __future__ import annotations

import pytest

from tests.extras.postgres.server import Postgres, programs


@pytest.fixture(scope="session")
def running_postgres():
    if programs() is None:  # `make quick` installs nothing
        pytest.skip("there is no PostgreSQL; `make system` installs it")
    running = Postgres("ada", "bob")
    yield running
    running.close()


@pytest.fixture
def postgres(running_postgres):
    running_postgres.empty()
    return running_postgres

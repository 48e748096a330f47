"""Other systems beside hermes_nb: each in an environment of its own, kept in the user's cache.

A module names its `SYSTEM`, whose packages are pinned in `NAME.txt`; its tests are those of the
front ends. `make test-systems` runs them, `make test` does not.
"""

from __future__ import annotations

import pytest

from tests.e2e.conftest import (  # noqa: F401 - fixtures
    model,
    open_notebook,
    pytest_runtest_makereport,
    server,
)
from tests.e2e.harness import Server, launched
from tests.environments import environment


@pytest.fixture(scope="module")
def python(request):
    return str(environment(request.module.SYSTEM, "jupyterlab", "notebook") / "bin" / "python")


# The module's: the next one that its process runs may want an event loop of its own.
@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(python, tmp_path_factory):
    running = Server("lab", tmp_path_factory.mktemp("lab"), python)
    yield running
    running.close()


@pytest.fixture(scope="module")
def notebook7(python, tmp_path_factory):
    running = Server("notebook", tmp_path_factory.mktemp("notebook7"), python)
    yield running
    running.close()

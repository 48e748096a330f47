"""One server for each application and one browser for all the tests of this folder."""

from __future__ import annotations

import itertools

import pytest

from tests.e2e.harness import Notebook, Server, launched
from tests.e2e.side import Side
from tests.loopback import Loopback, stream, text_chunks

_numbers = itertools.count()
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


# The package's, not the session's: Playwright keeps an event loop running in this thread, which the
# tests of other packages must not find there.
@pytest.fixture(scope="package")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    server = Server("lab", tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="package")
def notebook7(tmp_path_factory):
    server = Server("notebook", tmp_path_factory.mktemp("notebook7"))
    yield server
    server.close()


@pytest.fixture
def server(request):
    """The application that a test is parametrised with, else JupyterLab."""
    return request.getfixturevalue(getattr(request, "param", "lab"))


@pytest.fixture
def open_notebook(server, browser, request):
    """Return a function that opens a new notebook with the given cells.

    Its tab serves the next test too, but beside other systems or with `own=True`.
    """
    shared = {"own": "tests/e2e/" not in request.path.as_posix()}
    opened: list[Notebook] = []

    def open_one(*cells, name="", **options) -> Notebook:
        name = name or f"test{next(_numbers)}.ipynb"
        opened.append(Notebook.open(server, browser, name, cells, **shared | options))
        return opened[-1]

    yield open_one
    failed = request.node.stash.get(_FAILED, False)
    for number, notebook in enumerate(opened):
        if failed:
            notebook.shot(f"failed-{request.node.name}-{number}")
            print(*notebook.log, sep="\n")
        notebook.close(failed=failed)


@pytest.fixture(scope="package")
def kept_sides(lab, notebook7):
    """The pages that `side` keeps, by application; closed before their servers are."""
    kept: dict[str, Side] = {}
    yield kept
    for side in kept.values():
        side.close()


@pytest.fixture
def side(server, browser, kept_sides, request):
    """The panel of a page that is kept for all tests that want one; begin with `fresh`."""
    if server.app not in kept_sides:
        kept_sides[server.app] = Side.beside(server, browser)
    side = kept_sides[server.app]
    side.notebook.page.bring_to_front()
    yield side
    if request.node.stash.get(_FAILED, False):  # the next test is not to find what is left
        side.notebook.shot(f"failed-{request.node.name}")
        print(*side.notebook.log, sep="\n")
        kept_sides.pop(server.app).close()


@pytest.fixture
def model():
    """A provider for this test alone; set its `replies`."""
    with Loopback(stream(text_chunks("ok"))) as provider:
        yield provider

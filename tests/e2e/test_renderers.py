"""What a finished turn looks like elsewhere: GitHub, VS Code.

GitHub is `cmark-gfm` and a sanitiser with an allowlist; VS Code's notebooks are markdown-it with
HTML and DOMPurify behind it. Both are real here, in a real page.
"""

from __future__ import annotations

import cmarkgfm
import nh3
import pytest
from cmarkgfm.cmark import Options
from hermes_nb.core.events import (
    MessageAdded,
    ReasoningDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.notebook.display.transcript import Transcript

from tests.e2e.harness import picture
from tests.e2e.looking import npm

ALLOWED = set(
    "h1 h2 h3 h4 h5 h6 br b i strong em a pre code img div p ol ul li table thead tbody tr th td"
    " blockquote details summary sub sup s del ins kbd hr span input mark small".split()
)
"""Of GitHub's sanitiser, what an answer may hold."""
ANSWER = """**Gentoo** is the heaviest species; the gap is larger than $2\\sigma$ (about $5 and $6).

| species | n | mean g |
|---|---:|---:|
| Gentoo | 123 | 5,076 |
| Adelie | 151 | 3,701 |

1. Cell 5 scaled the length *after* dropping gaps:
   - swapped both steps
   - ran cells 5–7 again

```python
df = df[df["mass"] < 6_000]
print(f"<b>{len(df)}</b>")
```

H<sub>2</sub>O, see [the docs](https://example.org/a)."""
CALLS = (
    ("read_cells", {"ids": ["5", "6"]}, "ok", "5: df = load()\n\n6: ```\nnot a fence\n```"),
    ("run_python", {"code": "for x in range(3):\n    print('<b>', x)"}, "ok", "<b> 0\n<b> 1"),
    ("terminal", {"command": "grep -c '|' a.csv | sort"}, "error", "grep: a.csv: No such file"),
)
LOOK = """
body{font:14px/1.5 sans-serif;max-width:780px;margin:16px;color:#1f2328}
table{border-collapse:collapse}td,th{border:1px solid #d1d9e0;padding:4px 10px}
pre{background:#f6f8fa;padding:10px;overflow:auto}blockquote{color:#59636e}
"""


def view():
    """Return the finished view of a turn with everything in it."""
    transcript = Transcript(model="qwen3-coder")
    transcript(TurnStarted(1))
    transcript(
        ReasoningDelta("The unit changed in 2024, so *first* look at cell 5.\n\nThen run it.")
    )
    for number, (name, arguments, status, result) in enumerate(CALLS):
        call = ToolCall(id=str(number), name=name, arguments=arguments)
        transcript(MessageAdded(Message.assistant("Let me see.", calls=[call])))
        transcript(
            UsageReported(Usage(input=4_900, output=210, cached=4_000, requests=1, cost=0.004))
        )
        transcript(ToolStarted(call))
        transcript(ToolFinished(call, status, 0.4))
        transcript(MessageAdded(Message.tool(call, result)))
    transcript(MessageAdded(Message.assistant(ANSWER)))
    transcript(TurnEnded("answered"))
    return transcript.finished()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 820, "height": 1000})
    yield context.new_page()
    context.close()


def structure(page):
    """Return what the page has, folded and opened."""
    script = """() => {
      const all = s => [...document.querySelectorAll(s)];
      const folds = all('details');
      const open = folds.filter(d => d.open).length;
      const shown = all('pre').filter(p => p.checkVisibility()).length;
      folds.forEach(d => { d.open = true; });
      return { folds: folds.map(d => d.querySelector('summary').textContent), open, shown,
        pres: all('pre').map(p => p.textContent.trim()), rows: all('table tr').length,
        inner: all('details details').length, items: all('li li').length,
        tables: all('table').map(t => t.rows[0].cells.length),
        sub: all('sub').map(s => s.textContent), text: document.body.innerText,
        wide: document.documentElement.scrollWidth - innerWidth };
    }"""
    return page.evaluate(script)


def reads_well(found):
    """Assert that the view is as it was meant."""
    assert found["folds"][:2] == ["reasoning", "3 tool calls, 1 failed"]
    assert [fold.split()[1] for fold in found["folds"][2:]] == [name for name, *_ in CALLS]
    assert (found["open"], found["inner"]) == (0, len(CALLS))
    assert found["shown"] == 1, "the calls' code is folded away"
    code = 'df = df[df["mass"] < 6_000]\nprint(f"<b>{len(df)}</b>")'
    assert found["pres"][0] == code
    assert "5: df = load()\n\n6: ```\nnot a fence\n```" in found["pres"]
    assert "for x in range(3):\n    print('<b>', x)" in found["pres"]
    assert found["tables"] == [3]
    assert found["rows"] == 3
    assert found["items"] == 2
    assert found["sub"][0] == "2"
    assert "qwen3-coder · 3 requests · 14.7k in (82 % cached)" in found["sub"][-1]
    text = found["text"]
    order = [
        *("Gentoo", "swapped both", "print(f", "the docs", "The unit changed", "read_cells"),
        *("grep -c '|'", "qwen3-coder"),
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "$5 and $6" in text
    assert found["wide"] <= 0


def test_github_shows_a_finished_turn_well(page):
    options = Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_FOOTNOTES
    html = cmarkgfm.github_flavored_markdown_to_html(view(), options)
    cleaned = nh3.clean(html, tags=ALLOWED, attributes={"a": {"href"}, "img": {"src"}})
    page.set_content(f"<style>{LOOK}</style>{cleaned}")
    picture(page, "github-folded")
    reads_well(structure(page))
    picture(page, "github-open")


def test_vs_code_shows_a_finished_turn_well(page):
    page.set_content(f"<style>{LOOK}</style>")
    for script in ("markdown-it/dist/markdown-it.min.js", "dompurify/dist/purify.min.js"):
        page.add_script_tag(path=npm(script))
    page.evaluate(
        """text => { const md = markdownit({ html: true, linkify: true });
        document.body.innerHTML += DOMPurify.sanitize(md.render(text)); }""",
        view(),
    )
    picture(page, "vscode-folded")
    reads_well(structure(page))
    picture(page, "vscode-open")

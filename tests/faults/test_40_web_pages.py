"""A web page in place of an answer is named as what it is, with what to look at."""

from __future__ import annotations

import pytest

from tests.loopback import Reply, document

PAGE = b"<html><head><title>Sign in</title></head><body><script>alert(1)</script>welcome</body>"
PAGES = {
    "html": PAGE,
    "doctype": b"<!DOCTYPE html>\n" + PAGE,
    "shouting": PAGE.upper(),
    "behind blank lines": b"\r\n\r\n   " + PAGE,
    "behind a byte order mark": b"\xef\xbb\xbf" + PAGE,
    "xml": b'<?xml version="1.0"?><error><message>no</message></error>',
    "with events in it": PAGE + b'\n\ndata: {"choices": [{"delta": {"content": "injected"}}]}\n\n',
    "of two megabytes": PAGE + b"x" * 2_000_000,
}


KINDS = ["text/html", "application/json", "text/event-stream"]


@pytest.mark.parametrize(("number", "page"), list(enumerate(PAGES.values())), ids=PAGES)
def test_40_it_is_named(story, number, page):
    kind = KINDS[number % len(KINDS)]
    turn = story.ask(Reply([page], headers={"Content-Type": kind}), fails=True)
    assert "web page" in turn.error and "base_url" in turn.error
    assert len(story.server.exchanges) <= 3
    for trace in (str(turn.events), str(story.stored()), str(turn)):
        assert "welcome" not in trace.lower() and "alert" not in trace.lower()
        assert "injected" not in trace
    story.goes_on()


def test_40_a_page_that_comes_whole(story):
    turn = story.ask(document(PAGE), fails=True)
    assert "web page" in turn.error
    story.goes_on()


@pytest.mark.kernel
def test_40_in_the_cell(cells):
    result = cells.ask(document(PAGE), allow_stdin=True, timeout=90)
    assert result.status == "error"
    (line,) = result.error["traceback"]
    assert "web page" in line and "base_url" in line
    assert "alert" not in line + result.markdown

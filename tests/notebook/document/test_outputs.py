"""What the model reads of outputs: text transformations, and whole cells."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from pathlib import Path

import pytest
from hermes_nb.notebook.document.outputs import (
    clean,
    count_repeats,
    dimensions,
    error_text,
    html_to_text,
    picture,
    render,
    settle_lines,
    strip_ansi,
)
from hermes_nb.notebook.failed_cell import last_error
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within

OBJECT = "<IPython.core.display.Markdown object>"
ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}

messy = st.text(alphabet=st.sampled_from("ab \n\r\b\t\0\x1b[]0;1mKA\\\x07é\ud800…"), max_size=80)


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def display(**data):
    data = {key.replace("_", "/", 1): value for key, value in data.items()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def png(width=640, height=480, size=0):
    def chunk(kind, body):
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"\0" * size) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


@given(messy)
def test_clean_text_has_no_control_characters_and_stays_as_it_is(text):
    result = clean(text)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in result)
    result.encode()
    once = settle_lines(strip_ansi(text))
    assert settle_lines(strip_ansi(once)) == once


@given(st.text(alphabet="ab\rc", max_size=40))
def test_carriage_returns_write_over_what_was_there(line):
    screen: list[str] = []
    column = 0
    for character in line:
        if character == "\r":
            column = 0
            continue
        screen[column : column + 1] = character
        column += 1
    assert settle_lines(line) == "".join(screen)


@given(st.lists(st.sampled_from(["a", "b", "", "a…"]), max_size=30))
def test_repeats_are_counted_right(lines):
    text = "\n".join(lines)
    restored = []
    for line in count_repeats(text).split("\n"):
        head, mark, tail = line.partition(" … (repeated ")
        restored += [head] * int(tail.split()[0]) if mark else [line]
    assert [x for x in restored if x] == [x for x in lines if x]
    assert len(count_repeats(text).split("\n")) <= max(1, len(lines))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(("10%\r50%\r100%\n", "100%\n"), ("loading...\rdone", "doneing...")),
        *(("a\r\nb\r\n", "a\nb\n"), ("12\b3", "13")),
        ("\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07", "red link"),
        *(("\x1b[2K\rnew", "new"), ("same\n" * 40, "same … (repeated 40 times)\n")),
        *(("twice\ntwice\n", "twice\ntwice\n"), ("a\n\n\n\n\n\nb", "a\n\n\nb")),
        ("nul\0 and \ud800", "nul and \ufffd"),
    ],
)
def test_terminal_text(text, result):
    assert clean(text) == result


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((clean, "a" * 1_000_000 + "\rb" * 500_000), (clean, "\x1b[" * 1_000_000)),
        *((clean, "\x1b[" + "1" * 2_000_000), (clean, ("\x1b]" + "a" * 3000) * 600)),
        *((clean, "x\n" * 1_000_000), (clean, "a\b" * 1_000_000), (clean, "\0\ud800" * 1_000_000)),
        *((html_to_text, piece * (400_000 // len(piece)))
          for piece in ("<", "<a ", "<!--", "<script>", "<style>x", "</", "&", "<![CDATA[")),
    ],
    ids=lambda value: "" if callable(value) else repr(value[:8]),
)  # fmt: skip
def test_reading_is_linear(read, text):
    within(5, read, text)  # about 0.3 s for 2 MB; quadratic would be minutes


def test_html_tables_become_rows():
    markup = (
        "<style>td {}</style><table>\n<tr><th>a</th><th>b</th></tr>\n"
        "<tr><td>1 &lt; 2</td><td></td></tr></table><SCRIPT>x()</Script><p>end"
    )
    assert html_to_text(markup) == "a | b\n1 < 2 |\nend"


def test_a_missing_column_takes_a_few_lines_and_no_compiled_frames(run, shell):
    code = "import pandas as pd\nframe = pd.DataFrame({'a': [1]})\nframe['b']"
    text = render(run(code).outputs).text
    assert "----> 3 frame['b']" in text and "raise KeyError(key) from err" in text
    assert ".pxi" not in text and ".pyx" not in text and len(text.splitlines()) <= 9
    shell.run_cell(code)
    failed = last_error(shell)
    assert len(failed.lines) == 3 and not any(".pxi" in line for line in failed.lines)


TRACE = Path(__file__).with_name("traceback.txt").read_text(encoding="utf-8").removesuffix("\n")


def test_an_error_keeps_the_users_frames_and_the_last():
    text = error_text("KeyError", "'q'", TRACE)
    assert text.startswith("KeyError: 'q'\n")
    assert "----> 2 load(df)" in text and "---> 12     return df['q']" in text
    assert "frame.py:4378" not in text and "raise KeyError(key) from err" in text
    assert "1 frame left out" in text
    assert "\x1b" not in text
    assert text.count("KeyError: 'q'") <= 2
    frame = '  File "a.py", line 3, in f\n    1/0'  # as Python itself writes them
    trace = f"Traceback (most recent call last):\n{frame}\nZeroDivisionError: no"
    assert error_text("ZeroDivisionError", "no", trace) == f"ZeroDivisionError: no\n{frame}"
    place = "  Cell In[1], line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n"
    text = error_text("SyntaxError", "invalid syntax (x.py, line 1)", place)
    assert "    x = = 1\n        ^" in text
    text = error_text("RecursionError", "deep", 5_000 * f"{frame}\n")
    assert "[... 4997 frames left out ...]" in text
    deeper = error_text("RecursionError", "deep", 50_000 * f"{frame}\n")
    assert re.search(r"\[\.\.\. at least 5\d{3} frames left out", deeper) and len(deeper) < 200
    assert len(error_text("E", "x" * 10**6, "Cell In[1]\n" + "y\n" * 10**6)) < 10_000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text_plain": "   a\n0  1", "text_html": "<table>…</table>"}, "   a\n0  1"),
        ({"text_markdown": "**b**", "text_plain": OBJECT}, "**b**"),
        ({"text_html": "<b>x</b> y", "text_plain": OBJECT}, "x y"),
        ({"text_latex": "$x$", "text_plain": OBJECT}, "$x$"),
        ({"text_latex": "$x$", "text_plain": "x"}, "x"),
        ({"application_json": {"a": [1]}, "text_plain": OBJECT}, '[json] {"a": [1]}'),
        ({"application_json": float("nan"), "text_plain": OBJECT}, "[json] NaN"),
        ({"text_plain": ["a\n", "b"]}, "a\nb"),
        (
            {"application_vnd.jupyter.widget-view+json": {}, "text_plain": "IntSlider(value=0)"},
            "[jupyter.widget-view] IntSlider(value=0)",
        ),
        ({"application_vnd.plotly.v1+json": {}, "text_html": "<div>"}, "[plotly.v1]"),
        ({"image_svg+xml": "<svg/>"}, "[image/svg+xml]"),
        ({"text_plain": "<__main__.K object at 0x7f>"}, "<__main__.K object at 0x7f>"),
        ({}, ""),
    ],
)  # fmt: skip
def test_displays(data, text):
    assert render([display(**data)]).text == text


def test_streams_are_merged_and_no_output_crowds_out_another():
    output = render([stream("a\n"), stream("b\n"), stream("w\n", "stderr"), stream("c")])
    assert output.text == "a\nb\n[stderr]\nw\nc"
    outputs = [stream("x" * 10**6), display(text_plain="y" * 10**6), stream("z" * 10**6, "stderr")]
    text = render(outputs, limit=1000).text
    assert len(text) < 1300 and (text[0], text[-1]) == ("x", "z")
    short = [stream("x" * 10**6), display(text_plain="the result")]
    assert render(short, limit=1000).text.endswith("the result")


def test_pictures_come_with_a_note_and_are_bounded_in_number_and_size():
    data = png()
    output = render([display(image_png=data, text_plain="<Figure size 640x480>")] * 10, images=3)
    assert [(i.data, i.mime) for i in output.images] == [(data, "image/png")] * 3
    assert output.text.splitlines()[2:4] == [
        "[image/png 640x480]",
        "[image/png 640x480, not shown]",
    ]
    note, image = picture("image/png", png(size=3_000_000))
    assert image is None and "too large" in note
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x01\xe0\x02\x80" + b"\0" * 20
    assert dimensions("image/jpeg", base64.b64encode(jpeg).decode()) == (640, 480)


def begun(signature):
    """Return what begins as a picture does and goes on anyhow."""
    return st.binary(max_size=60).map(lambda data: base64.b64encode(signature + data).decode())


short = st.text(max_size=9)
fields = st.sampled_from(["output_type", "data", "text", "ename", "evalue", "traceback"])
markup = st.text(alphabet="<>/ab!-&;\"'= tdscriptI\u0130\n", max_size=60)
odd_outputs = st.one_of(
    st.builds(stream, messy, st.sampled_from(["stdout", "stderr"])),
    st.builds(display, text_plain=messy, x_y=messy),
    st.builds(display, text_html=markup),
    st.builds(display, image_png=begun(b"\x89PNG\r\n\x1a\n") | short),
    st.builds(display, image_jpeg=begun(b"\xff\xd8\xff") | short),
    st.builds(lambda name, said: {**ERROR, "ename": name, "traceback": [said]}, messy, messy),
    st.dictionaries(fields, st.none() | short | st.lists(short, max_size=3)),
)


@given(st.lists(odd_outputs, max_size=6))
def test_any_outputs_can_be_rendered(outputs):
    render(outputs, limit=200).text.encode()

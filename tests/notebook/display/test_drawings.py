"""Pictures that scratch code draws, for its user's eyes."""

from __future__ import annotations

from hermes_nb.notebook.display.drawings import LARGEST, MOST, drawings
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.notebook.test_turns import server
from tests.notebook.tools.test_kernel_tools import PIXEL

__all__ = ["server"]
CODE = f"""
from IPython.display import Image, HTML, display
import base64
from hermes_nb.notebook.display.drawings import show_drawings
from hermes_nb.notebook.execute.nested import execute
code = "print(1); display(HTML('<b>x</b>')); display(Image(base64.b64decode({PIXEL!r})))"
execution = await execute(get_ipython(), code)
show_drawings(get_ipython(), execution.outputs)
"""


def shows(**data):
    return {"output_type": "display_data", "data": data}


def test_only_pictures_and_charts_are_shown_and_not_too_many_or_too_large():
    png = {"image/png": PIXEL, "text/plain": "<Figure>"}
    chart = {"application/vnd.plotly.v1+json": {"data": []}, "text/html": "<script></script>"}
    page = {"text/html": "<script></script>", "text/plain": "x"}
    svg = {"image/svg+xml": "<svg onload='x()'/>", "text/plain": "x"}
    stream = {"output_type": "stream", "name": "stdout", "text": "1"}
    shown = drawings([stream, *(shows(**each) for each in (png, page, chart, svg))])
    assert [set(each) for each in shown] == [
        {"image/png", "text/plain"},
        {"application/vnd.plotly.v1+json", "text/plain"},
    ]
    assert len(drawings([shows(**{"image/png": PIXEL})] * 50)) == MOST
    assert drawings([shows(**{"image/png": "x" * (LARGEST + 1)})]) == []


@given(st.dictionaries(st.sampled_from(("image/png", "text/html", "x")), st.integers() | st.text()))
def test_odd_data_is_no_picture_or_a_text(data):
    for each in drawings([shows(**data), {"data": None}]):
        assert isinstance(each["image/png"], str)
        assert "text/html" not in each


def test_a_picture_stands_in_the_cell(server, tmp_path):
    with kernel(environment(server, tmp_path), cwd=str(tmp_path)) as running:
        result = running.run(CODE)
    assert result.status == "ok", result.error
    assert [set(each["data"]) for each in result.outputs] == [{"image/png", "text/plain"}]

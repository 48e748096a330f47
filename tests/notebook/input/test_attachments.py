"""Pictures for a turn: everything that can be one becomes one, within the limits."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.attachments import (
    BYTES,
    LONGEST,
    MOST,
    array_png,
    attached,
    attachments,
    shrunk_array,
)
from hypothesis import given
from hypothesis import strategies as st


class Shell:
    """As much of a shell as evaluates an expression."""

    def __init__(self, **names):
        self.user_ns_hidden = {}
        self.user_ns = names

    def ev(self, expression):
        return eval(expression, self.user_ns)  # the test's own expressions


def picture(value):
    found = attached("x", Shell(x=value))
    data = base64.b64decode(found.data)
    assert len(data) <= BYTES
    image = PIL.Image.open(io.BytesIO(data))
    assert max(image.size) <= LONGEST
    assert PIL.Image.MIME[image.format] == found.mime
    return image


@pytest.fixture
def axes():
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(6, 3), dpi=100)
    axes[0].plot([1, 2, 3])
    yield axes
    plt.close(figure)


def test_figures_and_axes_are_drawn(axes):
    figure = axes[0].figure
    for value in (figure, axes[0], axes):
        assert picture(value).size == (600, 300)
    figure.set_size_inches(60, 30)
    assert picture(figure).size[0] <= LONGEST
    assert figure.dpi == 100
    assert tuple(figure.get_size_inches()) == (60, 30)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "P", "CMYK", "I", "LA"])
def test_pillow_images_of_every_kind(mode):
    assert picture(PIL.Image.new(mode, (3_000, 20))).size == (LONGEST, 10)


def test_a_picture_that_does_not_compress_is_made_smaller():
    noise = np.random.default_rng(0).integers(0, 256, (1_500, 1_500, 3), dtype="uint8")
    assert picture(noise).size[0] < 1_500
    assert np.asarray(picture(np.array([[np.nan, 1.0]]))).tolist() == [[0, 255]]  # gaps are black
    assert picture(PIL.Image.fromarray(noise)).size[0] <= 1_500


CHANNELS = st.sampled_from([None, 1, 2, 3, 4])
KINDS = st.sampled_from(["uint8", "float32", "float64", "bool"])


@given(st.integers(1, 40), st.integers(1, 40), CHANNELS, KINDS, st.integers(0, 2**32 - 1))
def test_arrays_are_what_a_decoder_reads(rows, columns, channels, kind, seed):
    shape = (rows, columns) if channels is None else (rows, columns, channels)
    unit = np.random.default_rng(seed).random(shape)
    array = unit.astype(kind) if kind.startswith("f") else (unit * 255).astype(kind)
    read = np.asarray(PIL.Image.open(io.BytesIO(array_png(shrunk_array(array, 100)))))
    bytes_ = {"bool": lambda a: a * np.uint8(255), "uint8": lambda a: a}.get(
        kind, lambda a: np.rint(a.astype("float32") * 255).astype("uint8")
    )(array)
    assert (read.reshape(rows, columns, -1) == bytes_.reshape(rows, columns, -1)).all()


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 30))
def test_a_shrunk_array_fits_and_keeps_its_mean(rows, columns, longest):
    array = np.full((rows, columns, 3), 77, dtype="uint8")
    small = shrunk_array(array, longest)
    assert max(small.shape[:2]) <= longest
    assert (small == 77).all()


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((2, 2), "int64"), "floats from 0 to 1"),
        *((np.array([[0.0, 7.5]]), "scale them"), (np.array([[np.inf, 0.0]]), "scale them")),
        *((np.zeros(5), "not an image"), (np.zeros((2, 2, 9), "uint8"), "not an image")),
        *((np.zeros((0, 2), "uint8"), "no pixels"), (np.array([["a"]]), "not an image")),
    ],
)
def test_an_array_that_is_no_picture_says_what_to_do(array, told):
    with pytest.raises(ConfigError, match=told):
        attached("x", Shell(x=array))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_files_go_as_they_are(tmp_path, form):
    path = tmp_path / "a picture"
    PIL.Image.new("RGB", (64, 32), "red").save(path, form)
    for value in (path, str(path)):
        found = attached("x", Shell(x=value))
        assert base64.b64decode(found.data) == path.read_bytes()
        assert found.mime == f"image/{form.lower()}"


def test_a_large_file_is_made_smaller_and_a_moving_one_stands_still(tmp_path):
    path = tmp_path / "a.jpg"
    PIL.Image.new("RGB", (4_000, 100)).save(path)
    assert picture(path).size[0] == LONGEST
    frames = [PIL.Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert picture(tmp_path / "a.gif").format == "PNG"


@pytest.mark.parametrize("value", ["/nowhere/a.png", "a\0b", "bad", __file__, 7, None, {"a": 1}])
def test_what_is_no_picture_is_refused_in_one_line(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    Path("bad").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    with pytest.raises(ConfigError, match="Nothing was sent") as caught:
        attached("x", Shell(x=value))
    assert "\n" not in str(caught.value)


def showing(png):
    """Return what shows itself as IPython objects do."""
    return type("Showing", (), {"_repr_png_": lambda _: png})()


def test_objects_that_show_themselves():
    out = io.BytesIO()
    PIL.Image.new("RGB", (4, 4)).save(out, "PNG")
    png = out.getvalue()
    for form in (png, (png, {}), base64.b64encode(png).decode()):
        assert picture(showing(form)).size == (4, 4)
    with pytest.raises(ConfigError, match="has no image representation"):
        attached("x", Shell(x=showing(None)))


def test_a_wrong_expression_and_too_many(tmp_path):
    with pytest.raises(ConfigError, match="no variable 'nothing'"):
        attached("nothing", Shell())
    with pytest.raises(ConfigError, match="at most"):
        attachments(("x",) * (MOST + 1), Shell())

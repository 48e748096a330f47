"""What is kept of a flood, and in which order."""

from __future__ import annotations

import io
from threading import Thread

import pytest
from hermes_nb.notebook.execute import collector as module
from hermes_nb.notebook.execute.capture import Publisher, Stream
from hermes_nb.notebook.execute.collector import OutputCollector, current_run
from hypothesis import given
from hypothesis import strategies as st

writes = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr", "display"]), st.text(max_size=30)), max_size=60
)


@pytest.fixture(scope="module")
def small():
    """Make the limits small enough to be met."""
    limits = {"HEAD": 2000, "TAIL": 2000, "DISPLAYS": 3000, "_ENTRY": 500, "_PENDING": 4}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(module, name, value)
        yield


def play(collector, steps):
    for name, text in steps:
        if name == "display":
            collector.display({"text/plain": text})
        else:
            collector.write(name, text)


def expected(steps):
    """Return what a front end would show, the simple way."""
    shown = []
    for name, text in steps:
        if name == "display":
            shown.append(("display", text))
        elif shown and shown[-1][0] == name:
            shown[-1] = (name, shown[-1][1] + text)
        elif text:
            shown.append((name, text))
    return shown


def seen(collector):
    return [
        (o["name"], o["text"])
        if o["output_type"] == "stream"
        else ("display", o["data"]["text/plain"])
        for o in collector.outputs()
    ]


@given(writes)
def test_order_is_kept_and_adjacent_writes_merge(steps):
    collector = OutputCollector()
    play(collector, steps)
    assert seen(collector) == expected(steps)


def test_a_flood_keeps_its_head_and_tail(small):
    collector = OutputCollector()
    for i in range(10_000):
        collector.write("stdout", f"line {i}\n")
    (output,) = collector.outputs()
    text = output["text"]
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 9999\n")
    assert "characters of output dropped" in text
    assert len(text) < 6000
    collector.clear()
    collector.write("stdout", "a" + "x" * 100_000 + "z")
    text = collector.outputs()[0]["text"]
    assert text[0] == "a" and text[-1] == "z" and len(text) < 5000
    collector.clear()
    for i in range(5000):
        collector.write(("stdout", "stderr")[i % 2], "x")
    assert len(collector.outputs()) < 40
    collector.clear()
    collector.write("stdout", "y\ud800")
    assert seen(collector) == [("stdout", "y\ufffd")]


floods = st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(0, 3000))


@given(st.lists(floods, max_size=40))
def test_what_is_dropped_is_counted(small, steps):
    collector = OutputCollector()
    for name, count in steps:
        collector.write(name, "x" * count)
    text = "".join(o["text"] for o in collector.outputs())
    total = sum(count for _, count in steps)
    kept = text.count("x")
    assert kept <= 2000 + 2000 + 2 * 500
    marker = [line for line in text.split("\n") if line.startswith("[... ")]
    dropped = int(marker[0].split()[1].replace(",", "")) if marker else 0
    assert kept + dropped == total


def test_displays_survive_a_flood_of_text_in_their_place_and_have_a_limit_too(small):
    collector = OutputCollector()
    for i in range(100):
        collector.write("stdout", "x" * 200)
        if i in (50, 99):
            collector.display({"text/plain": str(i)})
    kinds = [name for name, _ in seen(collector)]
    assert kinds.count("display") == 2 and kinds[-1] == "display"
    for _ in range(100):
        collector.display({"image/png": "x" * 200})
    outputs = collector.outputs()
    assert len(outputs) < 20
    assert "displays dropped" in outputs[-1]["data"]["text/plain"]


def test_a_stream_says_what_it_is_and_after_the_end_may_lead_nowhere():
    stream = Stream("stdout", io.StringIO())
    assert stream.encoding == "utf-8" and stream.writable() and not stream.isatty()
    with pytest.raises(io.UnsupportedOperation):
        stream.fileno()
    print("nowhere", file=Stream("stdout", None), flush=True)


def test_a_publisher_passes_on_what_is_not_its():
    class Outer:
        session = "s"
        published = ()

        def publish(self, **options):
            self.published = options

        def clear_output(self, wait=False):
            self.published = "cleared"

    outer, collector = Outer(), OutputCollector()
    publisher = Publisher(collector, outer)
    here = current_run.set(collector)
    assert publisher.session == "s"
    publisher.publish({"text/plain": "1"}, transient={"display_id": "a"})
    publisher.publish({"text/plain": "2"}, transient={"display_id": "a"}, update=True)
    assert seen(collector) == [("display", "2")] and outer.published == ()
    publisher.publish({"text/plain": "3"}, transient={"display_id": "b"}, update=True)
    assert outer.published["data"] == {"text/plain": "3"} and outer.published["update"]
    users = Thread(target=publisher.clear_output)
    users.start()
    users.join()
    assert outer.published == "cleared" and seen(collector) == [("display", "2")]
    outer.published = ()
    collector.close()
    publisher.clear_output()
    current_run.reset(here)
    assert outer.published == "cleared" and seen(collector) == [("display", "2")]

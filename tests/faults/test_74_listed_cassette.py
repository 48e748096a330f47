"""What tools say of the cassette and of the notebook itself, both grown since, does not count."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.models.cassette import Cassette
from hermes_nb.models.scripted import ScriptedModel, call

STEPS = [
    [call("list_files", hidden=True), call("search_files", pattern="oak")],
    call("search_files", pattern="", glob="*"),
    "One file.",
]


@pytest.mark.timeout(120)
def test_74_a_listing_of_the_cassette_and_the_notebook_replays(tmp_path):
    work, tape = tmp_path / "work", tmp_path / "work" / "n.hermes.jsonl"
    work.mkdir()
    (work / "trees.csv").write_text("oak\n", encoding="utf-8")
    for mode in ("record", "replay", "replay"):
        with (work / "n.ipynb").open("a", encoding="utf-8") as file:
            file.write("oak in an output\n" * 99)
        model = Cassette(ScriptedModel(STEPS) if mode == "record" else None, tape, mode)
        with Hermes(model, home=tmp_path / "home", cwd=work) as hermes:
            turn = hermes.ask("What is here?")
            assert turn.text == "One file.", turn.error
            results = "\n".join(each.text for each in hermes.messages if each.role == "tool")
            assert "trees.csv" in results and "n.ipynb" in results
            assert "hermes.jsonl" not in results

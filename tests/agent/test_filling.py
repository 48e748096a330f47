"""What fills the window is what is sent."""

from __future__ import annotations

from hermes_nb import Hermes
from hermes_nb.agent.session.context_usage import shares
from hermes_nb.models.scripted import ScriptedModel


def parts(model, tmp_path):
    with Hermes(model, cwd=tmp_path) as hermes:
        hermes.ask("hello")
        return {share.kind: share for share in shares(hermes._opening.current)}


def test_all_schemas_count_where_all_are_sent(tmp_path):
    model = ScriptedModel(["hi"])
    found = parts(model, tmp_path)["tools"]
    assert found.name == f"{len(model.requests[0].tools)} tool schemas"

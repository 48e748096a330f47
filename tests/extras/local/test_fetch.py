"""`python -m hermes_nb.models.weights` fetches the weights."""

from __future__ import annotations

from tests.contract.test_doors import run


def test_weights_are_fetched_by_that_module(tmp_path):
    """And `HERMES_NB_GGUF` names a file; one that is no model is refused."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"text")
    done = run("-m", "hermes_nb.models.weights", cwd=tmp_path, HERMES_NB_GGUF=str(other))
    assert done.returncode == 1
    assert "HERMES_NB_GGUF" in done.stderr
    assert "Traceback" not in done.stderr

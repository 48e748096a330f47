"""What commands say of mixtures and of the models that they ask."""

from __future__ import annotations

from tests.loopback import Loopback, document
from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]


def test_a_mixture_and_its_models_are_listed_and_asked_by_the_doctor(desk, home):
    home.mkdir(mode=0o700, exist_ok=True)
    with Loopback(listing=document({"data": [{"id": "small"}]})) as one:
        (home / "config.yaml").write_text(
            f"hermes_nb:\n  model: main\n  base_url: {one.url}\n"
            "  auxiliary: {model: small}\n"
            "  mixture: {careful: {references: [small], aggregator: weigher}}\n"
        )
        listed = desk("models")
        for name in ("small", "weigher", "mixture:careful"):
            assert f"<code>{name}</code>" in listed or f"`{name}`" in listed
        told = desk("doctor")
    assert "for compression, recall, titles, mixture:careful" in told
    assert "for mixture:careful" in told

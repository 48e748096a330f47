"""Check the built-in model for `%hermes doctor`; an entry point of `hermes_nb.doctor`."""

from __future__ import annotations

from importlib.util import find_spec

from hermes_nb.extras.local.weights import locate
from hermes_nb.notebook.commands.doctor import CheckResult


def weights() -> CheckResult:
    """Return whether the built-in model can answer without a network."""
    if find_spec("xllamacpp") is None:
        return CheckResult("note", 'no built-in model: `pip install "hermes_nb[local]"` adds it')
    if locate() is None:
        text = "the built-in model is not downloaded yet; a turn that needs it asks first"
        return CheckResult("note", text)
    return CheckResult("ok", "the built-in model is downloaded and verified")

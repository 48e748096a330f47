"""Paths that earlier versions promised, kept until 1.0: approvals, and where tasks of maps run."""

from __future__ import annotations

import sys

from hermes_nb.agent import approvals, executors, maps

for _path, _module in {
    "approvals": approvals,
    "maps": maps,
    "maps.executors": executors,
    "maps.task": executors,  # engines of a cluster and pools find tasks by this name
}.items():
    sys.modules[f"{__name__}.{_path}"] = _module

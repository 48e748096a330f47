"""Which installed packages this kernel has really imported, as pinned requirements."""

from __future__ import annotations

import importlib.metadata
import sys

TOOLS = {"ipython", "ipykernel", "jupyter_client", "jupyter_core", "debugpy", "hermes_nb"}


def versions() -> str:
    """Return `# Python x.y.z` and a line `name==version` for each package imported by name."""
    owners = importlib.metadata.packages_distributions()
    main = sys.modules["__main__"]
    named = {
        getattr(value, "__module__", None) or getattr(value, "__name__", "")
        for value in list(vars(main).values())
    }
    roots = {str(name).partition(".")[0] for name in named if name}
    found: dict[str, str] = {}
    for root in sorted(roots):
        for distribution in owners.get(root, ()):
            if distribution.lower().replace("-", "_") not in TOOLS:
                found[distribution] = importlib.metadata.version(distribution)
    python = ".".join(map(str, sys.version_info[:3]))
    pinned = (f"{name}=={found[name]}" for name in sorted(found, key=str.lower))
    return "\n".join([f"# Python {python}", *pinned])

"""`python -m hermes_nb.models.weights` fetches the embedded model's weights."""

from __future__ import annotations

import sys

from hermes_nb.models.local.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

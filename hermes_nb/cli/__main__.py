"""`python -m hermes_nb.cli`, for environments without `jupyter hermes` on the path."""

from __future__ import annotations

import sys

from hermes_nb.cli.main import main

sys.exit(main())

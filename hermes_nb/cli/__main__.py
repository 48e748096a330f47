"""`python -m hermes_nb.cli`, where `jupyter hermes` is not on the path."""

from __future__ import annotations

import sys

from hermes_nb.cli.main import main

sys.exit(main())

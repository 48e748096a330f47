"""Whether an error is that of a replay which found no recording, told by its text.

That is all that leaves a kernel, or a turn. A test holds it against what `CassetteMiss` says.
"""

from __future__ import annotations

import re

_MISS = re.compile(r"no recording in .{1,300}? fits this request|there are no recordings in ")


def is_miss(text: str) -> bool:
    """Say whether an error's text is a cassette miss."""
    return _MISS.search(text) is not None

"""The numbers of the index's documents, which say where a message stands.

A document's number holds, from its highest bits to its lowest: the block of a session, the place in
the block, the role, the class of length. So neighbours in a conversation are neighbours by number,
a session is a few ranges of numbers, and ranking needs no look-up by document. A spot is a number
without role and length: what is left of it when only the place counts.
"""

from __future__ import annotations

from hermes_nb.core.messages import Role

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_MARGIN = 2
"""Places left free at both ends of a block, so that the neighbours of one never are another's."""
BLOCK = 256 - 2 * _MARGIN
"""Messages of a session that have consecutive places."""
_CLASSES = (24, 96, 384, 1536, 6144, 24576, 98304)
"""Terms up to which a message belongs to the first, second ... class of length."""

SPOT_BITS = 5
"""Bits of a document's number below its spot."""
BLOCK_BITS = 8
"""Bits of a spot below its block."""
LENGTH_MASK = 7
"""Those of a document's lowest bits that are the class of length."""
BLOCK_OF = "(rowid >> 13)"
"""SQL for the block of a document."""
ROLE_OF = "(rowid >> 3 & 3)"
"""SQL for the number in `ROLES` of a document's role."""


def document(block: int, position: int, role: Role, *, terms: int) -> int:
    """Return the number of the message at a position of its session, with so many terms."""
    spot = block << 8 | position % BLOCK + _MARGIN
    return spot << SPOT_BITS | ROLES.index(role) << 3 | sum(terms > limit for limit in _CLASSES)


def spot_of(document: int) -> int:
    """Return where a document stands."""
    return document >> SPOT_BITS


def role_of(document: int) -> Role:
    """Return the role of the message."""
    return ROLES[document >> 3 & 3]


def block_of(spot: int) -> int:
    """Return the block that a spot belongs to."""
    return spot >> BLOCK_BITS


def offset_of(spot: int) -> int:
    """Return the place in its block; negative, or `BLOCK` and more, where no message stands."""
    return (spot & 255) - _MARGIN


def documents_of(first: int, last: int) -> tuple[int, int]:
    """Return the least and the greatest document of the blocks `first` to `last`."""
    return first << 13, ((last + 1) << 13) - 1

"""Structural versions: how a plan knows, cheaply, that nothing it was built from has changed.

A *version* is a number that no other mutation ever had: every structural mutation of an object stores a fresh one in
the object, after the mutation is done. Two consequences: a copy or an unpickled object can never be mistaken for the
original, and a reader that saw a version before it looked at the object will notice a mutation that raced with it.

Metadata of Variables is immutable and replaced as a whole, so that its identity is its version.

`structure_epoch` is the newest of these numbers: while it stands still, no object and no metadata has changed anywhere,
and nobody needs to look at them one by one.
"""

from __future__ import annotations

import itertools

# `next` on a C-level counter is atomic, so that two threads never get the same number.
fresh_version = itertools.count(1).__next__


class Epoch:
    """One number for all mutations since the process began."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = fresh_version()

    def advance(self) -> None:
        """Takes a fresh number; to be called after the mutation."""
        self.now = fresh_version()


structure_epoch = Epoch()

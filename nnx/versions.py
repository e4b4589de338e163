"""Structural versions: numbers by which a plan checks, cheaply, that its objects have not changed.

Every structural mutation of an object stores a new *version* in it, after the mutation: a number that no other mutation
in the process has. So a copied or unpickled object is never mistaken for the original. And a reader that reads the
version first, and the object then, notices a mutation by another thread in between.

Metadata of Variables is immutable, and a change stores a new record, so its identity serves as its version.

`structure_epoch` is the newest of these numbers. While it is unchanged, no object and no metadata in the process has
changed, and no version needs to be compared.
"""

from __future__ import annotations

import itertools

# `next` on `itertools.count` is atomic, so two threads never get the same number.
fresh_version = itertools.count(1).__next__


class Epoch:
    """The newest structural version of the process."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = fresh_version()

    def advance(self) -> None:
        """Sets a new number. Call it after the mutation, never before."""
        # If this came before the mutation, another thread could store the new number with the old structure, and use an
        # outdated plan from then on.
        self.now = fresh_version()


structure_epoch = Epoch()

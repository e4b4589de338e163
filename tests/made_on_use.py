"""Tables of a parametrized test whose rows are made when a test first asks for them.

Each worker of a run imports every file of tests, so what a file makes on import is made once for each worker, and again
where none of the file's tests is selected. Making an array of a new shape compiles a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class MadeOnUse(Mapping[str, T], Generic[T]):
    """A mapping whose values are what the given functions return, each called once."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]):
        self._makers = makers
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

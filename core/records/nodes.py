"""The classes of nodes that `jax.export` writes, and how it writes each: `written` reads this list when it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Node:
    """How a class of nodes is written: under which name, and its own data as what can be written, and back."""

    cls: type
    name: str
    plain: Callable[[Any], object]
    back: Callable[[Any], object]


# A class may be made where no name leads to it, so that its name here is what it is found by.
nodes_by_class: dict[type, Node] = {}
nodes_by_name: dict[str, Node] = {}

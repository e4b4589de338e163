"""What `jax.export` writes of records: their tree definitions, as text that another process can read.

An exported function keeps the definitions of the trees that it takes and gives. JAX asks, for each type of node, how
its own data is written and read; every `weft.Module` is registered as its class is made, so that a process that has
imported the class reads it. What a record keeps in its definition is its configuration; `written` says how it is
written.

JAX asks nobody about dicts, and refuses those whose keys are no strings; it refuses namedtuples and other nodes that
nobody has registered for it, one by one. A training step has both: optax's states are namedtuples, and an optimizer's
arrays lie by path, which has numbers in it. So a definition is written with a node of ours in the place of each such
node, and read as what it stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from weft.core.edge import names, trees
from weft.core.edge._nodes import definition_of, is_exported, node_of, register_exported_node, write_instead
from weft.core.edge.trees import TreeDef
from weft.core.records.configuration import Mixed
from weft.core.records.nodes import Node, nodes_by_class, nodes_by_name
from weft.core.records.statics import Static

C = TypeVar("C", bound=type)


def exportable(cls: C) -> C:
    """Lets `jax.export` write and read trees with records of a class; `weft.Module` does so for its own subclasses.

    What is defined at the top of a module is written without it. It is for classes of equinox's that are made inside of
    functions, and has to run in the writing and in the reading process.

    Args:
        cls: a class of `equinox.Module`.

    >>> import equinox
    >>> exportable(equinox.nn.Identity) is exportable(equinox.nn.Identity)
    True
    """
    if cls not in _exportable:
        _exportable.add(cls)
        _register_node(cls, f"{cls.__module__}.{cls.__qualname__}")
    return cls


_exportable: set[type] = set()


def exportable_as(cls: type, plain: Callable[[Any], object], back: Callable[[Any], object]) -> None:
    """Lets `jax.export` write and read trees with nodes of another sort, such as objects and Variables.

    Args:
        cls: a class that is registered as a pytree.
        plain: from a node's own data to numbers, texts, functions with names and containers of them.
        back: from these to the data.
    """
    _register_node(cls, f"{cls.__module__}.{cls.__qualname__}", plain, back)


def _itself(value: Any) -> Any:
    return value


def _register_node(
    cls: type, name: str, plain: Callable[[Any], object] = _itself, back: Callable[[Any], object] = _itself
) -> None:
    def write(data: object) -> bytes:
        from weft.core.records.written import write_text

        return write_text(plain(data), cls.__qualname__)

    def read(text: bytes) -> object:
        from weft.core.records.written import read_text

        return back(read_text(text))

    # One name may stand for several classes: a notebook's cell that was run again, a class that a function makes. The
    # first keeps it; those that follow are numbered, alike in each process that defines them in this order.
    for number in range(1, 10_000):
        numbered = name if number == 1 else f"{name}#{number}"
        try:
            register_exported_node(
                cls,
                serialized_name=numbered,
                serialize_auxdata=write,
                deserialize_auxdata=read,
                from_children=functools.partial(node_of, cls),
            )
        except ValueError as error:
            if names.NAME_OF_EXPORTS not in str(error):
                raise
        else:
            nodes_by_class[cls] = nodes_by_name[numbered] = Node(cls, numbered, plain, back)
            return


_register_node(Static, "weft.Static")
_register_node(Mixed, "weft.Mixed")


# ---- nodes that JAX does not write -----------------------------------------------------------------------------------


class _Other:
    """In the place of a node that JAX would refuse; its own data is that one's class and data."""


def _read_other(node: tuple[type, Any], children: Any) -> Any:
    return node_of(*node, tuple(children))


def _write_other(node: tuple[type, Any]) -> bytes:
    from weft.core.records.written import write_node

    return write_node(*node)


def _read_other_data(text: bytes) -> tuple[type, Any]:
    from weft.core.records.written import read_node

    return read_node(text)


trees.register_node(_Other, lambda node: ((), None), lambda data, children: _Other())
register_exported_node(
    _Other,
    serialized_name="weft.node",
    serialize_auxdata=_write_other,
    deserialize_auxdata=_read_other_data,
    from_children=_read_other,
)


def _instead(definition: TreeDef) -> TreeDef:
    node = definition.node_data()
    if node is None or is_exported(*node):
        return definition
    return definition_of(_Other, node, definition.children())


write_instead(_instead)

"""Pending records: records that a compiled call returned, whose fields are built when somebody first reads them.

A step of training takes the model that the step before it returned, and nobody reads the model's fields in between. To
make its 300 records and as many dicts, and to free them again, at each step costs more than everything else around the
call. So a record that a compiled call returns is *pending*: its `__dict__` has a `Pending` in the place of every field.
The next compiled call takes the leaves from there (`interpreter.codegen`). To read a field or `__dict__`, or to let JAX
flatten the record, builds the fields first, so that nobody sees a difference.

Code that reads a record's `__dict__` must use `fields_of`, or `Module.__getattribute__`, which uses it. With a plain
read it would see the fields of a pending record as `Pending` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from weft.core.edge.trees import PyTree, TreeDef

# The descriptor of `__dict__` itself: equinox's `__getattribute__` is Python code, without which this is a fifth
# faster.
read_dict: Callable[[Any], dict[str, Any]] = eqx.Module.__dict__["__dict__"].__get__
# To set a dict that was built by a literal is a fifth faster than to fill a dict key by key.
write_dict: Callable[[Any, dict[str, Any]], None] = eqx.Module.__dict__["__dict__"].__set__

# Two keys in the dict of a pending record that are no fields; no field can have such a name.
PENDING = "<pending>"
_BUILT = "<built>"


class Form:
    """The structure of a pending record, shared by all records that one compiled program returns in one place.

    Attributes:
        treedef: the treedef of the record.
        make: builds the record from its leaves and from inner records that exist already.
    """

    __slots__ = ("make", "treedef")

    def __init__(self, treedef: TreeDef, make: Callable[[Sequence[Any], Sequence[Any]], PyTree]):
        self.treedef, self.make = treedef, make


class Pending:
    """The content of a pending record.

    Attributes:
        form: the form of the record.
        leaves: the leaves, in the order of JAX.
        records: its inner records, each of which is an existing record that was handed back, or `None`.
    """

    __slots__ = ("form", "leaves", "records")

    def __init__(self, form: Form, leaves: Sequence[Any], records: Sequence[Any]):
        self.form, self.leaves, self.records = form, leaves, records


def fields_of(record: Any) -> dict[str, Any]:
    """The `__dict__` of a record, as JAX flattens it; builds the fields of a pending record."""
    fields = read_dict(record)
    return _built(record, fields) if PENDING in fields else fields


def _built(record: Any, fields: dict[str, Any]) -> dict[str, Any]:
    # `make` is called without a lock: two threads may both build the fields, which costs time but changes nothing.
    pending = fields[PENDING]
    built = read_dict(pending.form.make(pending.leaves, pending.records))
    # Attributes that somebody set on the pending record with `object.__setattr__` are not lost.
    built.update((name, value) for name, value in fields.items() if value is not pending and name != _BUILT)
    # If two threads read the record at once, both use the fields that the first of them has built.
    built = fields.setdefault(_BUILT, built)
    write_dict(record, built)
    return built

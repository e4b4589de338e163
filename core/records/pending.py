"""Records that a compiled call returned: no more than their leaves until somebody looks.

A step of training takes the model that the step before it returned, and nobody has looked at the model in between. Its
300 records and as many dicts would be made and freed again at each step, which costs more than everything else around
the call. So a record that comes out of a compiled call is *pending*: its `__dict__` has a `Pending` in the place of
every field. The next compiled call takes the leaves from there (`interpreter.codegen`). Whoever looks at a field, at
`__dict__`, or lets JAX flatten the record has the fields made first, and sees what there always was.

All that reads a record's `__dict__` goes through `fields_of`, or through `Module.__getattribute__`, which does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from weft.core.edge.trees import PyTree, TreeDef

# The descriptor itself: equinox's `__getattribute__` is Python code, and going around it saves a fifth of the time.
read_dict: Callable[[Any], dict[str, Any]] = eqx.Module.__dict__["__dict__"].__get__
# A dict that is written down as a literal and set whole takes a fifth less than one that is filled key by key.
write_dict: Callable[[Any, dict[str, Any]], None] = eqx.Module.__dict__["__dict__"].__set__

# What a pending record has in its dict beside its fields; no field can have such a name.
PENDING = "<pending>"
_MADE = "<made>"


class Form:
    """What all records have in common that one compiled program returned in one place.

    Attributes:
        treedef: of the record.
        make: builds the record from its leaves and the records in it that are there already.
    """

    __slots__ = ("make", "treedef")

    def __init__(self, treedef: TreeDef, make: Callable[[Sequence[Any], Sequence[Any]], PyTree]):
        self.treedef, self.make = treedef, make


class Pending:
    """What there is of a pending record.

    Attributes:
        form: of the record.
        leaves: in the order of JAX.
        records: those in it that were handed on as they are, in the places of all that could be; `None` elsewhere.
    """

    __slots__ = ("form", "leaves", "records")

    def __init__(self, form: Form, leaves: Sequence[Any], records: Sequence[Any]):
        self.form, self.leaves, self.records = form, leaves, records


def fields_of(record: Any) -> dict[str, Any]:
    """The `__dict__` of a record, as JAX flattens it; the fields of a pending one are made."""
    fields = read_dict(record)
    return _made(record, fields) if PENDING in fields else fields


def _made(record: Any, fields: dict[str, Any]) -> dict[str, Any]:
    pending = fields[PENDING]
    made = read_dict(pending.form.make(pending.leaves, pending.records))
    # What was written past the frozen record, with `object.__setattr__`.
    made.update((name, value) for name, value in fields.items() if value is not pending and name != _MADE)
    # Of two threads that look at once, both see what the first has made.
    made = fields.setdefault(_MADE, made)
    write_dict(record, made)
    return made

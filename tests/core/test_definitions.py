"""A class that was defined again is said to be another one, wherever the two meet."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import weft
from weft import ContractError
from weft.core.definitions import another, defined_at, redefined_in, same_name
from weft.core.edge.trees import structure
from weft.core.errors import BranchError, CarryError, StructureError, SuccessorError
from weft.core.records.successors import check_successor
from weft.typecheck import contract

CELL = """
class Block(weft.Module):
    w: Float[Array, "d"]

class Net(weft.Module):
    block: Block

def of_a_block(block: Block) -> None: ...
"""


def run_cell(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": __name__}
    exec("import weft\nfrom jaxtyping import Array, Float", names)
    exec(compile(CELL, f"<cell {number}>", "exec", dont_inherit=True), names)
    return names


FIRST, SECOND = run_cell(1), run_cell(2)
OLD, NEW = FIRST["Block"](jnp.ones(2)), SECOND["Block"](jnp.ones(2))
IT_IS_NEW, IT_IS_OLD = "another Block, defined at <cell 2>:2", "another Block, defined at <cell 1>:2"


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ContractError, lambda: SECOND["Net"](OLD), f"field Net.block should be Block, and is {IT_IS_OLD}"),
        (ContractError, lambda: contract(SECOND["of_a_block"])(OLD), f"should be Block, and is {IT_IS_OLD}"),
        (CarryError, lambda: weft.fori_loop(0, 3, lambda i, b: NEW, OLD), f"carry: Block of 1 -> {IT_IS_NEW}"),
        (CarryError, lambda: weft.fori_loop(0, 3, lambda i, c: (NEW,), (OLD,)), f"carry[0]: Block of 1 -> {IT_IS_NEW}"),
        (BranchError, lambda: weft.cond(jnp.array(True), lambda: OLD, lambda: NEW), f"Block of 1 -> {IT_IS_NEW}"),
        (StructureError, lambda: weft.tree.merge(weft.tree.split(OLD, ...)[0], NEW), f"tree: it has {IT_IS_NEW}"),
        (StructureError, lambda: weft.tree.update({"b": OLD}, {"b": NEW}), "update 0.b"),
        (StructureError, lambda: weft.tree.changes(OLD, NEW), f"it has {IT_IS_NEW}, in the place of a Block"),
        (StructureError, lambda: weft.jvp(lambda b: b.w.sum(), (OLD,), (NEW,)), f"expected Block, got {IT_IS_NEW}"),
        (SuccessorError, lambda: check_successor(OLD, NEW, "model"), f"the successor of a Block is {IT_IS_NEW}"),
        (SuccessorError, lambda: check_successor([OLD], [NEW], "model"), f"model[0]: Block of 1 -> {IT_IS_NEW}"),
    ],
)  # fmt: skip
def test_a_class_that_is_defined_again_is_said_to_be_another_one(error, call, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_the_way_out_is_to_make_the_record_again():
    with pytest.raises(ContractError) as caught:
        SECOND["Net"](OLD)
    assert caught.value.fix.endswith("make the record again, with the new class")


def test_two_classes_of_different_names_are_not_taken_for_one():
    assert not same_name(FIRST["Block"], SECOND["Net"])
    assert not same_name(FIRST["Block"], FIRST["Block"])
    assert same_name(FIRST["Block"], SECOND["Block"])
    with pytest.raises(StructureError, match="the tree after: Block -> Net"):
        weft.tree.changes(OLD, FIRST["Net"](OLD))


def test_the_place_of_a_class_is_its_own_also_once_it_was_replaced():
    assert (defined_at(FIRST["Block"]), defined_at(SECOND["Block"])) == ("<cell 1>:2", "<cell 2>:2")
    assert defined_at(weft.Linear).startswith("modules/dense/linear.py:") or "linear.py:" in defined_at(weft.Linear)

    class Plain:
        def method(self): ...

    assert "test_definitions.py:" in defined_at(Plain)
    assert defined_at(type("Nowhere", (), {})) == ""
    assert another(type("Nowhere", (), {})) == "another Nowhere, defined again"


def test_a_cell_is_called_as_the_notebook_calls_it(monkeypatch):
    class Compiler:
        def format_code_name(self, name):
            return ("Cell", "In[3]") if name == "<cell 2>" else None

    class Shell:
        compile = Compiler()

    class IPython:
        @staticmethod
        def get_ipython():
            return Shell()

    monkeypatch.setitem(__import__("sys").modules, "IPython", IPython)
    assert defined_at(SECOND["Block"]) == "cell In[3], line 2"
    assert defined_at(FIRST["Block"]) == "<cell 1>:2"


def test_the_first_place_that_differs_is_found():
    before, after = {"a": jnp.ones(2), "b": [OLD, OLD]}, {"a": jnp.ones(2), "b": [OLD, NEW]}
    assert redefined_in(structure(before), after) == (("b", 1), FIRST["Block"], SECOND["Block"])
    assert redefined_in(structure(before), before) is None
    assert redefined_in(structure(before), {"a": None, "b": None}) is None

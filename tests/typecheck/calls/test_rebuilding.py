"""Dataclasses that JAX rebuilds through their constructor, under the import hook and `contract`."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import ContractError
from weft.typecheck import install_import_hook
from weft.typecheck.calls.runtime import contract

PACKAGE = """
import dataclasses

import flax.struct
import jax
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    x: Float[Array, "n"]
    y: Float[Array, "n d"]


@flax.struct.dataclass
class OfFlax:
    x: Float[Array, "n"]
    y: Float[Array, "n d"]


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Node:
    x: Float[Array, "n"]
    y: Float[Array, "n d"]

    def tree_flatten(self):
        return (self.x, self.y), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)
"""
CLASSES = ("Registered", "OfFlax", "Node")


@pytest.fixture(scope="module", params=["the hook", "contract"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    name = "rebuilt_by_" + request.param.replace(" ", "_")
    folder = tmp_path_factory.mktemp("packages")
    (folder / f"{name}.py").write_text(PACKAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        if request.param == "the hook":
            with install_import_hook(name):
                return importlib.import_module(name)
        module = importlib.import_module(name)
        for cls in CLASSES:
            contract(getattr(module, cls))
        return module


def _same(value: Any) -> Any:
    return value


def _three_calls(function: Callable[[Any], Any], value: Any) -> None:
    for _ in range(3):  # JAX's and weft's quick paths run from the second and third call on
        assert jax.tree.structure(function(value)) == jax.tree.structure(value)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("placeholder", [None, True, 0, object(), (1, 2)], ids=["None", "True", "0", "object", "tuple"])
def test_jax_fills_a_structure_with_placeholders(package: ModuleType, name: str, placeholder: Any):
    value = getattr(package, name)(jnp.ones(3), jnp.ones((3, 2)))
    treedef = jax.tree.structure(value)
    assert treedef.unflatten([placeholder] * 2).x is placeholder
    assert jax.tree.unflatten(treedef, [placeholder] * 2).x is placeholder
    assert jax.tree.map(lambda _: placeholder, value).y is placeholder


@pytest.mark.parametrize("name", CLASSES)
def test_transforms_rebuild_what_the_contract_would_refuse(package: ModuleType, name: str):
    value = getattr(package, name)(jnp.ones(3), jnp.ones((3, 2)))
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), value)
    axes = jax.tree.map(lambda _: 0, value)
    for function in (jax.vmap(_same, in_axes=(axes,)), jax.jit(jax.vmap(_same)), weft.jit(weft.vmap(_same))):
        _three_calls(function, stack)
    assert jax.lax.scan(lambda carry, x: (carry, x), value, stack)[1].x.shape == (2, 3)
    assert weft.scan(lambda carry, x: (carry, x))(value, stack)[1].x.shape == (2, 3)
    assert jax.grad(lambda instance: instance.x.sum())(value).y.shape == (3, 2)


@pytest.mark.parametrize("name", CLASSES)
def test_what_the_user_constructs_is_checked_inside_of_transforms_as_well(package: ModuleType, name: str):
    cls = getattr(package, name)

    def wrong(_: Any = None) -> Any:
        return cls(jnp.ones(3), jnp.ones((4, 2)))

    constructions: list[Callable[[], Any]] = [
        wrong,
        lambda: cls(x=None, y=None),
        lambda: jax.jit(wrong)(),
        lambda: weft.jit(wrong)(1),
        lambda: jax.vmap(wrong)(jnp.ones(2)),
        lambda: jax.vmap(cls)(jnp.ones((2, 3)), jnp.ones((2, 4, 2))),
        lambda: jax.tree.map(wrong, 1),
        lambda: list(map(cls, [jnp.ones(3)], [jnp.ones((4, 2))])),
    ]
    for construct in constructions:
        with pytest.raises(ContractError, match=rf"field {name}\.[xy] should be"):
            construct()

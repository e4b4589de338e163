"""How users of flax.nnx save and restore with Orbax: `python orbax_idioms.py save|restore FOLDER`.

Written for flax.nnx as it is; `test_orbax.py` runs it under flax and under weft, each with the folder that the other
wrote. Prints a JSON object: for each idiom what was saved or what came back, or the error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1

AUTO = jax.sharding.AxisType.Auto
MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AUTO, AUTO))


class Net(nnx.Module):
    """Dropout's keys, statistics, bfloat16, an empty one, a list, a tied kernel and a layer of None."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(8, 4, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, param_dtype=jnp.bfloat16, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.tied = self.embed.embedding
        self.scale = nnx.Variable(jnp.float32(3.0), note="a scalar")
        self.nothing = None
        self.by_name = nnx.Dict(one=nnx.Cache(jnp.arange(3)), two=nnx.Linear(4, 2, use_bias=False, rngs=rngs))

    def __call__(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.by_name.two(self.dropout(self.norm(x)))


class Sharded(nnx.Module):
    """Two kernels, each over the mesh in its own way."""

    def __init__(self, rngs: nnx.Rngs):
        init = nnx.initializers.lecun_normal()
        self.up = nnx.Linear(4, 8, kernel_init=nnx.with_partitioning(init, (None, "model")), rngs=rngs)
        self.down = nnx.Linear(8, 4, kernel_init=nnx.with_partitioning(init, ("model", "data")), rngs=rngs)


def make(seed: int) -> tuple[Net, nnx.Optimizer]:
    model = Net(nnx.Rngs(seed, dropout=seed + 1))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@functools.cache
def trained() -> tuple[Net, nnx.Optimizer]:
    model, optimizer = make(0)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    model(jnp.arange(8))  # moves the statistics, and the count of dropout's stream
    return model, optimizer


def abstract() -> tuple[nnx.GraphDef, nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: make(1)))


def on_one_device(state):
    """Abstract leaves with a sharding, as Orbax asks for."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), state)


def make_sharded(seed: int) -> Sharded:
    with jax.set_mesh(MESH):
        return nnx.jit(lambda: Sharded(nnx.Rngs(seed)))()


# Each idiom has two functions: one that saves and returns the objects, one that restores and returns them.


def save_standard(path):
    made = trained()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, nnx.state(made))
    return made


def restore_standard(path):
    graphdef, state = abstract()
    with ocp.StandardCheckpointer() as checkpointer:
        return nnx.merge(graphdef, checkpointer.restore(path, state))


def restore_onto_a_device(path):
    graphdef, state = abstract()
    with ocp.StandardCheckpointer() as checkpointer:
        return nnx.merge(graphdef, checkpointer.restore(path, on_one_device(state)))


def restore_into_live_objects(path):
    made = make(1)
    with ocp.StandardCheckpointer() as checkpointer:
        nnx.update(made, checkpointer.restore(path, nnx.state(made)))
    return made


def restore_without_a_target(path):
    """What comes back is nested dicts, with numbers for names and a `value` for each Variable."""
    made = make(1)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path)
    flat = {
        tuple(int(part) if str(part).isdigit() else part for part in path[:-1]): leaf
        for path, leaf in nnx.traversals.flatten_mapping(restored).items()
        if path[-1] == "value"
    }
    state = nnx.state(made)
    nnx.replace_by_pure_dict(state, nnx.traversals.unflatten_mapping(flat))
    nnx.update(made, state)
    return made


def save_pure_dict(path):
    made = trained()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, nnx.to_pure_dict(nnx.state(made)))
    return made


def restore_pure_dict(path):
    graphdef, state = abstract()
    with ocp.StandardCheckpointer() as checkpointer:
        pure = nnx.restore_int_paths(checkpointer.restore(path))
    nnx.replace_by_pure_dict(state, pure)
    return nnx.merge(graphdef, state)


def restore_pure_dict_into_shapes(path):
    graphdef, state = abstract()
    with ocp.StandardCheckpointer() as checkpointer:
        nnx.replace_by_pure_dict(state, checkpointer.restore(path, nnx.to_pure_dict(state)))
    return nnx.merge(graphdef, state)


def save_pytree(path):
    made = trained()
    ocp.PyTreeCheckpointer().save(path, nnx.state(made))
    return made


def restore_pytree(path):
    made = make(1)
    state = nnx.state(made)
    arguments = ocp.checkpoint_utils.construct_restore_args(state)
    nnx.update(made, ocp.PyTreeCheckpointer().restore(path, item=state, restore_args=arguments))
    return made


def save_managed(path):
    made = trained()
    with ocp.CheckpointManager(path, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        _, params, rest = nnx.split(made, nnx.Param, ...)
        saved = ocp.args.Composite(
            params=ocp.args.StandardSave(params), rest=ocp.args.StandardSave(rest), config=ocp.args.JsonSave({"a": 1})
        )
        manager.save(2, args=saved)
        manager.wait_until_finished()
    return made


def restore_managed(path):
    graphdef, params, rest = nnx.split(nnx.eval_shape(lambda: make(1)), nnx.Param, ...)
    with ocp.CheckpointManager(path) as manager:
        wanted = ocp.args.Composite(
            params=ocp.args.StandardRestore(params), rest=ocp.args.StandardRestore(rest), config=ocp.args.JsonRestore()
        )
        restored = manager.restore(manager.latest_step(), args=wanted)
    assert restored["config"] == {"a": 1}
    return nnx.merge(graphdef, restored["params"], restored["rest"])


def save_sharded(path):
    model = make_sharded(0)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, nnx.state(model))
    return model


def restore_sharded(path):
    """Into the shardings that an abstract model names."""
    with jax.set_mesh(MESH):
        graphdef, state = nnx.get_abstract_model(lambda: Sharded(nnx.Rngs(1)), MESH)
    with ocp.StandardCheckpointer() as checkpointer:
        return nnx.merge(graphdef, checkpointer.restore(path, state))


def restore_into_other_shardings(path):
    """Each over the other axis, from the specs of the model's metadata."""
    with jax.set_mesh(MESH):
        graphdef, state = nnx.split(nnx.eval_shape(lambda: Sharded(nnx.Rngs(1))))
    sharding = NamedSharding(MESH, PartitionSpec("data"))
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state)
    with ocp.StandardCheckpointer() as checkpointer:
        return nnx.merge(graphdef, checkpointer.restore(path, state))


def save_nested(path):
    """States in dicts, a Variable on its own, and plain numbers and arrays beside them."""
    model, _ = trained()
    tree = {
        "model": {"params": nnx.state(model, nnx.Param), "stats": nnx.state(model, nnx.BatchStat)},
        "alone": nnx.Param(jnp.arange(4.0)),
        "step": 3,
        "raw": np.arange(3),
        "pair": [jnp.ones(2), nnx.Cache(jnp.zeros(1))],
        "keys": {"many": nnx.RngKey(jax.random.split(jax.random.key(0), 3)), "rbg": jax.random.key(1, impl="rbg")},
    }
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return tree


def restore_nested(path):
    model, _ = make(1)
    tree = {
        "model": {"params": nnx.state(model, nnx.Param), "stats": nnx.state(model, nnx.BatchStat)},
        "alone": nnx.Param(jnp.zeros(4)),
        "step": 0,
        "raw": np.zeros(3, int),
        "pair": [jnp.zeros(2), nnx.Cache(jnp.ones(1))],
        "keys": {"many": nnx.RngKey(jax.random.split(jax.random.key(9), 3)), "rbg": jax.random.key(9, impl="rbg")},
    }
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, tree)


def save_in_the_new_way(path):
    made = trained()
    v1.save_pytree(path, nnx.state(made))
    return made


def restore_in_the_new_way(path):
    graphdef, state = abstract()
    return nnx.merge(graphdef, v1.load_pytree(path, state))


IDIOMS = {
    "standard": (
        save_standard,
        restore_standard,
        restore_onto_a_device,
        restore_into_live_objects,
        restore_without_a_target,
    ),
    "pure": (save_pure_dict, restore_pure_dict, restore_pure_dict_into_shapes),
    "pytree": (save_pytree, restore_pytree),
    "managed": (save_managed, restore_managed),
    "sharded": (save_sharded, restore_sharded, restore_into_other_shardings),
    "nested": (save_nested, restore_nested),
    "v1": (save_in_the_new_way, restore_in_the_new_way),
}


def described(tree) -> dict[str, str]:
    """Each leaf by path: type, dtype, numbers, where it lies."""
    state = tree if isinstance(tree, dict) else nnx.state(tree)
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        value, kind = leaf, type(leaf).__name__
        if isinstance(leaf, nnx.Variable):
            value = leaf.get_value()
            kind += str(sorted(name for name in leaf.get_metadata()))
        sharding = getattr(value, "sharding", None)
        spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else ""
        dtype = str(getattr(value, "dtype", type(value).__name__))
        if dtype.startswith("key"):
            value = jax.random.key_data(value)
        numbers = np.asarray(value, np.float64 if dtype == "bfloat16" else None).tolist()
        leaves[jax.tree_util.keystr(path)] = f"{kind} {dtype} {spec} {numbers}"
    if not isinstance(tree, dict) and hasattr(tree, "__len__"):
        leaves["tied"] = str(tree[0].tied is tree[0].embed.embedding)
    return leaves


def main(action: str, folder: Path) -> None:
    results = {}
    for name, (save, *restores) in IDIOMS.items():
        for function in (save,) if action == "save" else restores:
            try:
                results[function.__name__] = described(function(folder / name))
            except Exception as error:
                if os.environ.get("RAISE"):
                    raise
                results[function.__name__] = {"error": f"{type(error).__name__}: {error}"[:1000]}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())

"""Orbax, as its users call it: a run of training is saved, and another goes on from what is there.

`python checkpoints.py save FOLDER` trains and saves; `... restore FOLDER` restores in every way that is of use to the
next program: to go on training, on another mesh, a part into another model, the best step, what is in it.
"""

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
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
OTHER = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
X = jnp.linspace(-1, 1, 4 * 16).reshape(4, 16)
Y = jnp.arange(4) % 3


class Norms(nnx.Variable):
    """The user's own kind of state."""


def partitioned(*names):
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 32, kernel_init=partitioned(None, "model"), param_dtype=jnp.bfloat16, rngs=rngs)
        self.down = nnx.Linear(32, 16, kernel_init=partitioned("model", None), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = Norms(jnp.zeros((), jnp.bfloat16), note="the size of what came out")

    def __call__(self, x):
        y = self.norm(x + self.dropout(self.down(nnx.gelu(self.up(x)))))
        self.last[...] = jnp.linalg.norm(y).astype(jnp.bfloat16)
        return y


class Classifier(nnx.Module):
    """Blocks in a list, the first also by name; a scanned stack; a kernel that is used twice."""

    def __init__(self, rngs, outputs=3):
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.first = self.blocks[0]
        self.stack = self.stacked(rngs)
        self.head = nnx.Linear(16, outputs, rngs=rngs)
        self.tied = self.head.kernel

    @staticmethod
    def stacked(rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return nnx.Linear(16, 16, rngs=rngs)

        return make(rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        x, _ = nnx.scan(lambda x, layer: (nnx.relu(layer(x)), None))(x, self.stack)
        return self.head(x) + x @ self.tied


class Trainer:
    """What a script keeps: a model, its optimizer, an average of the parameters, and a stream of keys for the data."""

    def __init__(self, seed, mesh):
        self.mesh = mesh
        with jax.set_mesh(mesh):
            self.parts = self.make(seed)

    @staticmethod
    def make(seed):
        model = Classifier(nnx.Rngs(seed, dropout=seed + 1))
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20)
        tx = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)), 2)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        return nnx.Dict(model=model, optimizer=optimizer, data=nnx.Rngs(jax.random.key(seed, impl="rbg")))

    @property
    def state(self):
        return nnx.state(self.parts)

    def abstract(self):
        """Shapes with shardings, from the model's own specs."""
        with jax.set_mesh(self.mesh):
            return nnx.get_abstract_model(lambda: self.make(9), self.mesh)

    def train(self, steps):
        @nnx.jit
        def step(parts, x, y):
            x = x + 0.01 * parts.data.normal(x.shape)

            def loss(model):
                return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

            value, grads = nnx.value_and_grad(loss)(parts.model)
            parts.optimizer.update(parts.model, grads)
            return value

        with jax.set_mesh(self.mesh):
            return [float(step(self.parts, X, Y)) for _ in range(steps)]


def tell(name, tree):
    """Each leaf by path: type, dtype, sharding and size."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    for path, leaf in leaves:
        kind, value = type(leaf).__name__, leaf
        if isinstance(leaf, nnx.Variable):
            value = leaf.get_value()
            kind += str([str(leaf.get_metadata(name, None)) for name in ("out_sharding", "note")])
        dtype = str(getattr(value, "dtype", type(value).__name__))
        spec = value.sharding.spec if isinstance(getattr(value, "sharding", None), NamedSharding) else ""
        if dtype.startswith("key"):
            numbers = np.asarray(jax.random.key_data(value)).tolist()
        else:
            numbers = f"{np.abs(np.asarray(value, np.float64)).sum():.5f}"
        print(f"{name} {jax.tree_util.keystr(path)} {kind} {dtype} {spec} {numbers}")


def manager(folder, **options):
    manager_options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: -metrics["loss"], **options)
    return ocp.CheckpointManager(folder, options=manager_options)


def save(folder):
    trainer = Trainer(0, MESH)
    with manager(folder / "run", enable_async_checkpointing=True) as checkpoints:
        for step in range(3):
            loss = trainer.train(2)[-1]
            _, params, keys, rest = nnx.split(trainer.parts.model, nnx.Param, nnx.RngState, ...)
            checkpoints.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params),
                    keys=ocp.args.PyTreeSave(keys),
                    rest=ocp.args.StandardSave(rest),
                    optimizer=ocp.args.StandardSave(nnx.state(trainer.parts.optimizer)),
                    data=ocp.args.StandardSave(nnx.state(trainer.parts.data)),
                    config=ocp.args.JsonSave({"outputs": 3, "loss": round(loss, 3)}),
                ),
                metrics={"loss": loss},
            )
            print(f"saved {step} {loss:.4f}")
        checkpoints.wait_until_finished()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "whole", trainer.state)
        checkpointer.save(folder / "pure", nnx.to_pure_dict(nnx.state(trainer.parts.model, nnx.Param)))
    v1.save_pytree(folder / "new", {"model": nnx.state(trainer.parts.model), "step": 6})
    v1.save_checkpointables(folder / "many", {"params": nnx.state(trainer.parts.model, nnx.Param), "meta": {"a": 1}})
    print("next", *(f"{loss:.4f}" for loss in trainer.train(2)))


def go_on(folder):
    """The best step of the run, into live objects; then training goes on."""
    trainer = Trainer(5, MESH)
    _, params, keys, rest = nnx.split(trainer.parts.model, nnx.Param, nnx.RngState, ...)
    with manager(folder / "run") as checkpoints:
        print("steps", checkpoints.all_steps(), checkpoints.latest_step(), checkpoints.best_step())
        restored = checkpoints.restore(
            checkpoints.best_step(),
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(params),
                keys=ocp.args.PyTreeRestore(keys, restore_args=ocp.checkpoint_utils.construct_restore_args(keys)),
                rest=ocp.args.StandardRestore(rest),
                optimizer=ocp.args.StandardRestore(nnx.state(trainer.parts.optimizer)),
                data=ocp.args.StandardRestore(nnx.state(trainer.parts.data)),
                config=ocp.args.JsonRestore(),
            ),
        )
        metadata = checkpoints.item_metadata(checkpoints.latest_step())
    print("config", restored["config"])
    print("metadata", sorted(metadata.keys()) if hasattr(metadata, "keys") else type(metadata).__name__)
    nnx.update(trainer.parts.model, restored["params"], restored["keys"], restored["rest"])
    nnx.update(trainer.parts.optimizer, restored["optimizer"])
    nnx.update(trainer.parts.data, restored["data"])
    print("still tied", trainer.parts.model.tied is trainer.parts.model.head.kernel)
    tell("run", trainer.state)
    print("goes on", *(f"{loss:.4f}" for loss in trainer.train(2)))


def elsewhere(folder):
    """The whole of it, from shapes alone, over another mesh."""
    trainer = Trainer(5, OTHER)
    graphdef, shapes = trainer.abstract()
    with ocp.StandardCheckpointer() as checkpointer:
        trainer.parts = nnx.merge(graphdef, checkpointer.restore(folder / "whole", shapes))
    tell("whole", trainer.state)
    print("goes on", *(f"{loss:.4f}" for loss in trainer.train(2)))


def a_part(folder):
    """The blocks of a trained model under another head."""
    with jax.set_mesh(MESH):
        model = Classifier(nnx.Rngs(7), outputs=5)
    wanted = nnx.state(model, nnx.All(nnx.Param, nnx.Any(nnx.PathContains("blocks"), nnx.PathContains("stack"))))
    pure = nnx.to_pure_dict(wanted)
    arguments = ocp.checkpoint_utils.construct_restore_args(pure)
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(
            folder / "pure", args=ocp.args.PyTreeRestore(pure, restore_args=arguments, partial_restore=True)
        )
    nnx.replace_by_pure_dict(wanted, nnx.restore_int_paths(restored))
    nnx.update(model, wanted)
    tell("part", nnx.state(model, nnx.Not(nnx.PathContains("head"))))


def by_hand(folder):
    """Into single arrays where one says, with other dtypes; then as nested dicts without any target."""
    trainer = Trainer(3, MESH)
    pure = nnx.to_pure_dict(nnx.state(trainer.parts.model, nnx.Param))
    everywhere = NamedSharding(MESH, P())
    arguments = jax.tree.map(lambda _: ocp.ArrayRestoreArgs(sharding=everywhere, dtype=jnp.float32), pure)
    with ocp.PyTreeCheckpointer() as checkpointer:
        tell("by hand", checkpointer.restore(folder / "pure", item=pure, restore_args=arguments))
    with ocp.StandardCheckpointer() as checkpointer:
        flat = nnx.traversals.flatten_mapping(checkpointer.restore(folder / "whole"), sep="/")
    for path in sorted(flat):
        if "opt_state" not in path:
            print("untargeted", path, type(flat[path]).__name__, getattr(flat[path], "shape", ""))


def in_the_new_way(folder):
    trainer = Trainer(4, MESH)
    graphdef = nnx.graphdef(trainer.parts.model)
    loaded = v1.load_pytree(folder / "new", {"model": nnx.state(trainer.parts.model), "step": 0})
    tell("new", loaded)
    model = nnx.merge(graphdef, loaded["model"])
    print("used", f"{float(jnp.abs(model(X)).mean()):.4f}")
    many = v1.load_checkpointables(folder / "many", {"params": nnx.state(trainer.parts.model, nnx.Param)})
    tell("many", many["params"])
    names = v1.pytree_metadata(folder / "new").metadata
    print("metadata", len(jax.tree.leaves(names)))


def wrong(folder):
    """A model of another size: the error, by its builtin class."""
    with jax.set_mesh(MESH):
        wrong_state = nnx.state(nnx.Dict(model=Classifier(nnx.Rngs(0), outputs=7)))
    for name in ("whole", "missing"):
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.restore(folder / name, wrong_state)
        except Exception as error:
            print("wrong", name, next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"))


def restore(folder):
    for way in (go_on, elsewhere, a_part, by_hand, in_the_new_way, wrong):
        way(folder)


if __name__ == "__main__":
    {"save": save, "restore": restore}[sys.argv[1]](Path(sys.argv[2]).resolve())

"""jax2onnx, as its users call it: layers and models exported to ONNX, run by onnxruntime, compared with JAX."""

import collections
import logging
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from flax import nnx
from jax2onnx import to_onnx

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
RNGS = nnx.Rngs(0)
SEQUENCE, IMAGE = ("B", 6, 8), ("B", 8, 8, 4)


class Residual(nnx.Module):
    def __init__(self, *, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, deterministic=True, rngs=rngs)
        self.mlp = nnx.Sequential(nnx.Linear(8, 16, rngs=rngs), nnx.gelu, nnx.Linear(16, 8, rngs=rngs))

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class ConvNet(nnx.Module):
    def __init__(self, *, rngs):
        self.convs = nnx.List([nnx.Conv(4, 8, (3, 3), rngs=rngs), nnx.Conv(8, 8, (3, 3), strides=2, rngs=rngs)])
        self.norms = nnx.List([nnx.BatchNorm(8, use_running_average=True, rngs=rngs) for _ in range(2)])
        self.dropout = nnx.Dropout(0.3, deterministic=True, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.max_pool(nnx.relu(norm(conv(x))), window_shape=(2, 2), strides=(2, 2))
        return nnx.log_softmax(self.head(self.dropout(x.mean((1, 2)))))


def merged(graphdef, state):
    """A function that has the model as data."""
    return lambda x: nnx.merge(graphdef, state)(x)


CASES = {
    "Linear": (nnx.Linear(8, 3, rngs=RNGS), SEQUENCE),
    "Linear without bias": (nnx.Linear(8, 3, use_bias=False, rngs=RNGS), SEQUENCE),
    "LinearGeneral": (nnx.LinearGeneral((6, 8), (2, 3), axis=(-2, -1), rngs=RNGS), SEQUENCE),
    "Einsum": (nnx.Einsum("btf,fg->btg", (8, 3), (3,), rngs=RNGS), SEQUENCE),
    "Conv": (nnx.Conv(4, 6, (3, 3), rngs=RNGS), IMAGE),
    "Conv, strided, dilated, grouped": (
        nnx.Conv(4, 8, (3, 3), strides=2, kernel_dilation=1, padding="VALID", feature_group_count=2, rngs=RNGS),
        IMAGE,
    ),
    "ConvTranspose": (nnx.ConvTranspose(4, 6, (3, 3), strides=2, rngs=RNGS), (2, 8, 8, 4)),
    "BatchNorm": (nnx.BatchNorm(4, use_running_average=True, rngs=RNGS), IMAGE),
    "LayerNorm": (nnx.LayerNorm(8, rngs=RNGS), SEQUENCE),
    "RMSNorm": (nnx.RMSNorm(8, rngs=RNGS), SEQUENCE),
    "GroupNorm": (nnx.GroupNorm(4, num_groups=2, rngs=RNGS), IMAGE),
    "InstanceNorm": (nnx.InstanceNorm(4, rngs=RNGS), (2, 8, 8, 4)),
    "Dropout": (nnx.Dropout(0.5, deterministic=True, rngs=RNGS), SEQUENCE),
    "MultiHeadAttention": (nnx.MultiHeadAttention(2, 8, decode=False, deterministic=True, rngs=RNGS), SEQUENCE),
    "LoRA": (nnx.LoRA(8, 2, 3, rngs=RNGS), SEQUENCE),
    "LoRALinear": (nnx.LoRALinear(8, 3, lora_rank=2, rngs=RNGS), SEQUENCE),
    "pooling": (
        lambda x: nnx.avg_pool(nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2)), window_shape=(2, 2)),
        (2, 8, 8, 4),
    ),
    "activations": (lambda x: nnx.silu(nnx.elu(nnx.leaky_relu(nnx.tanh(x)))) + nnx.softmax(x), SEQUENCE),
    "a block": (Residual(rngs=RNGS), SEQUENCE),
    "a ConvNet": (ConvNet(rngs=RNGS), (2, 8, 8, 4)),
    "a merged model": (merged(*nnx.split(Residual(rngs=RNGS))), SEQUENCE),
}


def exported(model, shape, path):
    """How far the two results are apart, and the operations of the graph."""
    to_onnx(
        model,
        [jax.ShapeDtypeStruct(shape, jnp.float32) if "B" not in shape else shape],
        return_mode="file",
        output_path=str(path),
    )
    session = onnxruntime.InferenceSession(str(path))
    x = np.random.default_rng(0).standard_normal([3 if size == "B" else size for size in shape]).astype(np.float32)
    (ours,) = session.run(None, {session.get_inputs()[0].name: x})
    theirs = np.asarray(model(jnp.asarray(x)))
    # How a bias is broadcast is nobody's business: all other operations count.
    counted = collections.Counter(node.op_type for node in onnx.load(path).graph.node if node.op_type != "Reshape")
    return np.allclose(ours, theirs, rtol=1e-3, atol=1e-4), theirs.shape, sorted(counted.items())


with tempfile.TemporaryDirectory() as folder:
    for name, (model, shape) in CASES.items():
        print(name, *exported(model, shape, Path(folder) / "model.onnx"))

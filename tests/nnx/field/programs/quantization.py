"""qwix, as its users call it: weights and activations quantised after training and during it, and LoRA, by path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx


class Block(nnx.Module):
    def __init__(self, features, *, rngs):
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, features, decode=False, rngs=rngs)
        self.up = nnx.Linear(features, 2 * features, rngs=rngs)
        self.down = nnx.Linear(2 * features, features, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class Classifier(nnx.Module):
    def __init__(self, *, rngs):
        self.embed = nnx.Embed(16, 8, rngs=rngs)
        self.conv = nnx.Conv(8, 8, kernel_size=(3,), rngs=rngs)
        self.blocks = nnx.List([Block(8, rngs=rngs) for _ in range(2)])
        self.mixer = nnx.Einsum("btf,fg->btg", (8, 8), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.LinearGeneral((2, 4), 3, axis=(-2, -1), rngs=rngs)

    def __call__(self, tokens):
        x = self.conv(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        x = self.norm(self.mixer(x)).mean(1)
        return self.head(x.reshape(x.shape[0], 2, 4))


def show(title, model, tokens):
    """What it computes, and what became of its Variables."""
    print(title)
    print("  out:", np.asarray(model(tokens)).round(3).tolist()[0])
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        value = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        arrays = [f"{one.dtype}{one.shape}" for one in jax.tree.leaves(value)]
        print("  ", ".".join(map(str, path)), type(leaf).__name__, type(value).__name__, arrays)


def trained(model, tokens, labels, steps=4, wrt=nnx.Param):
    """The losses of a few steps."""
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=wrt)

    @nnx.jit
    def step(model, optimizer):
        def loss_fn(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(tokens), labels).mean()

        loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, wrt))(model)
        optimizer.update(model, grads)
        return loss

    return [round(float(step(model, optimizer)), 3) for _ in range(steps)]


def make():
    model = Classifier(rngs=nnx.Rngs(0))
    model.eval()
    return model


tokens = jnp.asarray(np.random.default_rng(0).integers(0, 16, (4, 6)))
labels = jnp.array([0, 1, 2, 0])
show("as it is", make(), tokens)

everything = [qwix.QuantizationRule(module_path=".*", weight_qtype="int8", act_qtype="int8")]
some = [
    qwix.QuantizationRule(module_path="blocks/0/.*", weight_qtype="int4", tile_size=4),
    qwix.QuantizationRule(module_path="blocks/1/(up|down)", weight_qtype="int8", act_qtype="int8"),
    qwix.QuantizationRule(module_path="head", weight_qtype="float8_e4m3fn", act_qtype="float8_e4m3fn"),
    qwix.QuantizationRule(module_path="conv", weight_qtype="int8", act_qtype="int8", act_static_scale=True),
]
for title, rules in (("everything", everything), ("some, by path", some)):
    model = qwix.quantize_model(make(), qwix.PtqProvider(rules), tokens)
    show(f"quantised after training: {title}", model, tokens)
    print("  jitted:", np.asarray(nnx.jit(lambda model, x: model(x))(model, tokens)).round(3).tolist()[1])

rules = [qwix.QtRule(module_path=".*", weight_qtype="int8", act_qtype="int8", bwd_qtype="int8")]
model = qwix.quantize_model(make(), qwix.QtProvider(rules), tokens)
print("quantised training:", trained(model, tokens, labels))
qat = [qwix.QuantizationRule(module_path="blocks/.*", weight_qtype="int8", act_qtype="int8")]
model = qwix.quantize_model(make(), qwix.QtProvider(qat), tokens)
model.train()
print("quantised blocks, in training:", trained(model, tokens, labels))

provider = qwix.LoraProvider(module_path=".*(up|down|head)", rank=2, alpha=4.0)
model = qwix.apply_lora_to_model(make(), provider, tokens, rngs=nnx.Rngs(3))
show("LoRA", model, tokens)
print("LoRA:", trained(model, tokens, labels, wrt=nnx.LoRAParam))
provider = qwix.LoraProvider(module_path=".*(up|down)", rank=2, alpha=4.0, weight_qtype="int8")
model = qwix.apply_lora_to_model(make(), provider, tokens, rngs=nnx.Rngs(3))
show("LoRA over quantised weights", model, tokens)
print("LoRA over quantised weights:", trained(model, tokens, labels, wrt=nnx.LoRAParam))

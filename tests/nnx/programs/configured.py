"""A GPT whose blocks keep a mutable config dataclass; parameter groups by path; the model printed after training."""

import math
from dataclasses import dataclass

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import optax
from jax import random


@dataclass
class GPTConfig:
    block_size: int = 8
    vocab_size: int = 13
    n_layer: int = 1
    n_head: int = 2
    n_embd: int = 8
    dropout: float = 0.0
    bias: bool = True


class CausalSelfAttention(nnx.Module):
    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        assert config.n_embd % config.n_head == 0
        self.c_attn = nnx.Linear(config.n_embd, 3 * config.n_embd, use_bias=config.bias, rngs=rngs)
        self.c_proj = nnx.Linear(
            config.n_embd,
            config.n_embd,
            use_bias=config.bias,
            rngs=rngs,
            kernel_init=nnx.initializers.normal(0.02 / math.sqrt(2 * config.n_layer)),
        )
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.bias = nnx.Variable(jnp.tril(jnp.ones((config.block_size, config.block_size), bool)))

    def __call__(self, x):
        B, T, C = x.shape
        q, k, v = jnp.split(self.c_attn(x), 3, axis=2)
        q, k, v = (t.reshape(B, T, self.n_head, C // self.n_head).swapaxes(1, 2) for t in (q, k, v))
        att = (q @ k.swapaxes(-2, -1)) / math.sqrt(k.shape[-1])
        att = jnp.where(self.bias[:T, :T], att, float("-inf"))
        y = nnx.softmax(att, axis=-1) @ v
        return self.c_proj(y.swapaxes(1, 2).reshape(B, T, C))


class MLP(nnx.Module):
    def __init__(self, c, rngs):
        self.c_fc = nnx.Linear(c.n_embd, 4 * c.n_embd, rngs=rngs)
        self.c_proj = nnx.Linear(4 * c.n_embd, c.n_embd, rngs=rngs)
        self.dropout = nnx.Dropout(rate=c.dropout, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.c_proj(nnx.gelu(self.c_fc(x), approximate=True)))


class Block(nnx.Module):
    def __init__(self, c, rngs):
        self.ln_1 = nnx.LayerNorm(c.n_embd, epsilon=1e-5, use_bias=c.bias, rngs=rngs)
        self.attn = CausalSelfAttention(c, rngs)
        self.ln_2 = nnx.LayerNorm(c.n_embd, epsilon=1e-5, use_bias=c.bias, rngs=rngs)
        self.mlp = MLP(c, rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nnx.Module):
    def __init__(self, config, rngs):
        self.config = config
        self.wte = nnx.Embed(config.vocab_size, config.n_embd, embedding_init=nnx.initializers.normal(0.02), rngs=rngs)
        self.wpe = nnx.Embed(config.block_size, config.n_embd, rngs=rngs)
        self.h = nnx.List([])
        for _ in range(config.n_layer):
            self.h.append(Block(config, rngs))
        self.ln_f = nnx.LayerNorm(config.n_embd, rngs=rngs)

    def __call__(self, idx, targets=None):
        _b, t = idx.shape
        x = self.wte(idx) + self.wpe(jnp.arange(t)[None])
        for block in self.h:
            x = block(x)
        logits = self.wte.attend(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
        return logits, loss

    def configure_optimizers(self, weight_decay, lr):
        def label(path, v):
            name = [getattr(k, "key", getattr(k, "name", getattr(k, "idx", None))) for k in path]
            return "decay" if "kernel" in name or "embedding" in name else "no_decay"

        params = nnx.state(self, nnx.Param)
        labels = jax.tree_util.tree_map_with_path(label, params)
        print(sorted(jax.tree.leaves(labels)))
        tx = optax.multi_transform(
            {"decay": optax.adamw(lr, weight_decay=weight_decay), "no_decay": optax.adam(lr)},
            lambda ps: jax.tree_util.tree_map_with_path(label, ps),
        )
        return nnx.Optimizer(self, tx, wrt=nnx.Param)

    def generate(self, key, idx, n, temperature=1.0, top_k=None):
        for _ in range(n):
            logits, _ = self(idx[:, -self.config.block_size :])
            logits = logits[:, -1] / temperature
            if top_k:
                logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][:, -1:], -jnp.inf, logits)
            key, k = random.split(key)
            idx = jnp.concatenate([idx, random.categorical(k, logits)[:, None]], 1)
        return idx


config = GPTConfig()
m = GPT(config, nnx.Rngs(42))
opt = m.configure_optimizers(0.1, optax.cosine_decay_schedule(1e-2, 20))
x = random.randint(random.key(0), (3, 8), 0, 13)
y = jnp.roll(x, -1, 1)


@nnx.jit
def train_step(m, opt, x, y):
    def f(m):
        return m(x, y)[1]

    loss, grads = nnx.value_and_grad(f, argnums=nnx.DiffState(0, nnx.Param))(m)
    opt.update(m, grads)
    return loss


print([f"{train_step(m, opt, x, y):.4f}" for _ in range(6)])
print(m.generate(random.key(1), x[:1, :3], 2, top_k=5))
print(m.config, len(m.h))
m.config.dropout = 0.5
print(train_step(m, opt, x, y) > 0, m.h[0].mlp.dropout.rate)
flat = nnx.to_flat_state(nnx.state(m))
print(*[(p, type(v).__name__, v.shape, str(v.dtype)) for p, v in flat][:8], sep="\n")
# The names in the order in which they print, without what they are.
print([line.split("=")[0].strip() for line in repr(m.h[0]).splitlines()])

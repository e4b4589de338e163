"""A small causal transformer: trained, then decoded token by token with the attention's cache."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

VOCAB, LENGTH, FEATURES, HEADS = 11, 8, 16, 2


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(FEATURES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, FEATURES, dropout_rate=0.1, decode=False, rngs=rngs)
        self.norm2 = nnx.RMSNorm(FEATURES, rngs=rngs)
        self.up = nnx.Linear(FEATURES, 32, rngs=rngs)
        self.down = nnx.Linear(32, FEATURES, rngs=rngs)

    def __call__(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCAB, FEATURES, rngs=rngs)
        self.position = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (LENGTH, FEATURES)))
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(FEATURES, rngs=rngs)

    def __call__(self, tokens, positions, mask=None):
        x = self.embed(tokens) + self.position[positions]
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


def loss_fn(model, tokens):
    mask = nnx.make_causal_mask(tokens)
    logits = model(tokens, jnp.arange(LENGTH), mask)
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, tokens):
    loss, grads = nnx.value_and_grad(loss_fn)(model, tokens)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def decode_step(model, token, position):
    logits = model(token, position[None])
    return logits[:, -1].argmax(-1)


model = Transformer(nnx.Rngs(0))
model.train()
optimizer = nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param)
starts = jnp.arange(4)[:, None]
tokens = (starts + jnp.arange(LENGTH)) % VOCAB
for step in range(12):
    loss = train_step(model, optimizer, tokens)
    if step % 4 == 3:
        print(f"step {step}: loss {loss:.3f}")

model.eval()
for block in model.blocks:
    block.attention.decode = True
    block.attention.init_cache((4, LENGTH, FEATURES))
print("kinds:", sorted({type(leaf).__name__ for _, leaf in nnx.to_flat_state(nnx.state(model))}))

token, generated = starts, [starts]
for position in range(LENGTH - 1):
    token = decode_step(model, token, jnp.array(position))[:, None]
    generated.append(token)
print(jnp.concatenate(generated, 1).tolist())
print("cache index:", int(model.blocks[0].attention.cache_index[...]))
print("parameters:", sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))))

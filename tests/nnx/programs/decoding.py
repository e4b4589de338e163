"""Generation: speculative decoding, beam search and sampling, with caches copied, gathered and carried by a loop."""

import jax
import jax.numpy as jnp
from flax import nnx


class Blk(nnx.Module):
    def __init__(self, d, rngs):
        self.n = nnx.RMSNorm(d, rngs=rngs)
        self.a = nnx.MultiHeadAttention(2, d, decode=True, rngs=rngs)
        self.f = nnx.Linear(d, d, rngs=rngs)

    def __call__(self, x):
        x = x + self.a(self.n(x))
        return x + nnx.silu(self.f(x))


class LM(nnx.Module):
    def __init__(self, v, d, n, *, rngs):
        self.e = nnx.Embed(v, d, rngs=rngs)
        self.h = nnx.List([Blk(d, rngs) for _ in range(n)])

    def __call__(self, t):
        x = self.e(t)[:, None]
        for b in self.h:
            x = b(x)
        return self.e.attend(x)[:, 0]

    def reset(self, b, n):
        for h in self.h:
            h.a.init_cache((b, n, h.a.in_features))


V = 11
target, draft = LM(V, 8, 2, rngs=nnx.Rngs(0)), LM(V, 8, 1, rngs=nnx.Rngs(1))
[m.reset(1, 12) for m in (target, draft)]


def caches(m):
    return jax.tree.map(jnp.copy, nnx.state(m, nnx.Cache))


nxt = nnx.jit(lambda m, t: m(t))


def spec(prompt, k, total):
    out = list(prompt)
    [nxt(m, jnp.array([t])) for t in prompt[:-1] for m in (target, draft)]
    acc = 0
    while len(out) < total:
        sd, st = caches(draft), caches(target)
        prop, t = [], out[-1]
        for _ in range(k):
            t = int(nxt(draft, jnp.array([t])).argmax())
            prop.append(t)
        ok, t = [], out[-1]
        for p in prop:
            q = int(nxt(target, jnp.array([t])).argmax())
            ok.append(q)
            if q != p:
                break
            t = p
            acc += 1
        nnx.update(draft, sd)
        nnx.update(target, st)
        for t in [out[-1], *ok[:-1]]:
            [nxt(m, jnp.array([t])) for m in (target, draft)]
        out += ok
    return out[:total], acc


print(spec([1, 2], 2, 9))
target.reset(1, 12)
seq = [1, 2]
[nxt(target, jnp.array([t])) for t in seq[:-1]]
while len(seq) < 9:
    seq.append(int(nxt(target, jnp.array([seq[-1]])).argmax()))
print(seq, target.h[0].a.cache_index)


@nnx.jit
def beam(m, first, steps=4, B=3):
    lp = jnp.array([0.0] + [-1e9] * (B - 1))
    toks = jnp.zeros((B, steps + 1), int).at[:, 0].set(first)
    for i in range(steps):
        s = jax.nn.log_softmax(m(toks[:, i])) + lp[:, None]
        lp, idx = jax.lax.top_k(s.reshape(-1), B)
        src, tok = idx // V, idx % V
        toks = toks[src].at[:, i + 1].set(tok)
        nnx.update(m, jax.tree.map(lambda c, src=src: c[src] if c.ndim > 1 else c, nnx.state(m, nnx.Cache)))
    return toks, lp


target.reset(3, 12)
t, lp = beam(target, 1)
print(t, lp)


@nnx.jit
def sample_until(m, key, stop=0):
    def cond(c):
        return (c[3] < 8) & (c[2] != stop)

    def body(c):
        m, key, tok, i, out = c
        key, k = jax.random.split(key)
        lg = m(tok[None])[0]
        s = jnp.sort(lg)[::-1]
        keep = jnp.cumsum(jax.nn.softmax(s)) - jax.nn.softmax(s) < 0.9
        tok = jax.random.categorical(k, jnp.where(lg >= jnp.where(keep, s, jnp.inf).min(), lg, -jnp.inf))
        return m, key, tok, i + 1, out.at[i].set(tok)

    _, _, _, n, out = nnx.while_loop(cond, body, (m, key, jnp.array(1), jnp.array(0), jnp.full(8, -1)))
    return n, out


target.reset(1, 12)
print(sample_until(target, jax.random.key(3)), target.h[1].a.cache_index[...])


def stream(m, t, n):
    for _ in range(n):
        t = int(nxt(m, jnp.array([t])).argmax())
        yield t


draft.reset(1, 12)
print(list(stream(draft, 4, 5)))
try:
    target.reset(2, 12)
    nxt(target, jnp.array([1]))
except ValueError:
    print("ValueError")

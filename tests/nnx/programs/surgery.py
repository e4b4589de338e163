"""Model surgery: LoRA put in and merged, weights tied and untied, layers added, swapped and removed inside of jit."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class LoRAAdapter(nnx.Module):
    def __init__(self, base: nnx.Linear, rank, *, rngs, alpha=1.0):
        self.base = base
        self.alpha = alpha
        self.a = nnx.LoRAParam(nnx.initializers.he_uniform()(rngs.params(), (base.in_features, rank)))
        self.b = nnx.LoRAParam(jnp.zeros((rank, base.out_features)))

    def __call__(self, x):
        return self.base(x) + x @ self.a @ self.b * self.alpha

    def merged(self):
        l = nnx.clone(self.base)
        l.kernel[...] += self.a[...] @ self.b[...] * self.alpha
        return l


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.l1 = nnx.Linear(3, 4, rngs=rngs)
        self.mid = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)])
        self.l2 = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.l1(x))
        for m in self.mid:
            x = nnx.relu(m(x))
        return self.l2(x)


m = MLP(nnx.Rngs(0))
x = jnp.ones((2, 3))
y0 = m(x)
jf = nnx.jit(lambda m, x: m(x))
jf(m, x)
r = nnx.Rngs(9)
for _, node in list(nnx.iter_graph(m)):
    if isinstance(node, MLP):
        for name, child in list(vars(node).items()):
            if type(child) is nnx.Linear:
                setattr(node, name, LoRAAdapter(child, 2, rngs=r))
for i, l in enumerate(m.mid):
    m.mid[i] = LoRAAdapter(l, 1, rngs=r)
print(jnp.allclose(jf(m, x), y0), [type(v).__name__ for _, v in nnx.iter_modules(m)])
opt = nnx.Optimizer(m, optax.adam(0.1), wrt=nnx.LoRAParam)


@nnx.jit
def step(m, opt):
    l, g = nnx.value_and_grad(lambda m: ((m(x) - 1) ** 2).mean(), argnums=nnx.DiffState(0, nnx.LoRAParam))(m)
    opt.update(m, g)
    return l


for _ in range(3):
    print(f"{step(m, opt):.4f}")
y1 = m(x)


def merge(path, node):
    return node.merged() if isinstance(node, LoRAAdapter) else node


m2 = nnx.recursive_map(merge, m)
print(
    jnp.allclose(m2(x), y1, atol=1e-5), type(m2.l1).__name__, len(jax.tree.leaves(nnx.state(m2))), type(m.l1).__name__
)
m2.mid[1] = m2.mid[0]
print(nnx.find_duplicates(m2), len(jax.tree.leaves(nnx.state(m2))), m2.mid[0] is nnx.clone(m2).mid[1])
c = nnx.clone(m2)
print(c.mid[0] is c.mid[1])
g = nnx.grad(lambda m: m(x).sum())(m2)
print(jax.tree.map(jnp.shape, nnx.to_pure_dict(g)))
m2.l1.kernel = m2.l1.kernel
m2.tied = m2.l2.kernel
print(m2.tied is m2.l2.kernel)


@nnx.jit
def unshare(m):
    m.mid[1] = nnx.clone(m.mid[1])
    m.tied = None
    del m.tied
    return m.mid[0] is m.mid[1]


print(unshare(m2), m2.mid[0] is m2.mid[1], hasattr(m2, "tied"), nnx.find_duplicates(m2))


@nnx.jit
def grow(m):
    m.mid.append(nnx.Linear(4, 4, rngs=nnx.Rngs(3)))
    m.depth = len(m.mid)
    m.l2, m.spare = nnx.Linear(4, 1, rngs=nnx.Rngs(1)), m.l2


old = m2.l2
grow(m2)
print(len(m2.mid), m2.depth, m2.spare is old, m2(x).shape)
b = nnx.clone(m2)
nnx.update(b, jax.tree.map(jnp.zeros_like, nnx.state(b)))
print(b(x), m2(x).sum() != 0)
del m2.mid[0]
m2.mid.pop()
m2.mid.insert(0, nnx.Linear(4, 4, rngs=nnx.Rngs(4)))
m2.mid.extend([])
print(len(m2.mid), m2(x).shape)
m2.mid.reverse()
print([layer.kernel.shape for layer in m2.mid])
print(sorted(k for k in vars(m2) if not k.startswith("_pytree")))

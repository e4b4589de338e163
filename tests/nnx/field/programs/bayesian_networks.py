"""numpyro, as its users call it: NNX networks fitted by SVI, one with running statistics, one with random weights."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from flax import nnx
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

X = jnp.linspace(-1, 1, 24)[:, None]
Y = jnp.sin(3 * X)


class Network(nnx.Module):
    def __init__(self, *, normalised, rngs):
        self.inner = nnx.Linear(1, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs) if normalised else None
        self.outer = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        return self.outer(nnx.tanh(x if self.norm is None else self.norm(x)))


def fitted(normalised):
    def model(x, y=None):
        network = nnx_module("network", Network(normalised=normalised, rngs=nnx.Rngs(0)))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(network(x), 0.1).to_event(1), obs=y)

    svi = SVI(model, lambda x, y=None: None, optax.adam(0.01), Trace_ELBO())
    result = svi.run(jax.random.key(1), 60, X, Y, progress_bar=False)
    print("fitted", normalised, f"{result.losses[0]:.4f}", f"{result.losses[-1]:.4f}", sorted(result.params))
    for path, leaf in jax.tree_util.tree_leaves_with_path(result.params):
        print(" ", jax.tree_util.keystr(path), leaf.shape, f"{float(leaf.sum()):.4f}")


def random_model(x, y=None):
    prior = {"inner.kernel": dist.Normal(), "inner.bias": dist.Cauchy(), "outer.kernel": dist.Normal()}
    network = random_nnx_module("network", Network(normalised=False, rngs=nnx.Rngs(0)), prior=prior)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(network(x), 0.1).to_event(1), obs=y)


def random_weights():
    guide = AutoNormal(random_model)
    result = SVI(random_model, guide, optax.adam(0.01), Trace_ELBO()).run(
        jax.random.key(2), 40, X, Y, progress_bar=False
    )
    print("guide", f"{result.losses[0]:.3f}", f"{result.losses[-1]:.3f}", sorted(result.params))
    drawn = Predictive(random_model, guide=guide, params=result.params, num_samples=3)(jax.random.key(3), X)
    print("predictive", drawn["y"].shape, f"{float(drawn['y'].mean()):.3f}")
    sampler = MCMC(NUTS(random_model, max_tree_depth=3), num_warmup=8, num_samples=4, progress_bar=False)
    sampler.run(jax.random.key(4), X, Y)
    print("nuts", {name: values.shape for name, values in sorted(sampler.get_samples().items())})


fitted(False)
fitted(True)
random_weights()

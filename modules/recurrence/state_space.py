"""DiagonalSSM: a linear recurrence with a diagonal matrix, computed in parallel over time by an associative scan."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact
from weft.core.records.module import Module
from weft.modules.construct import ConfigError, KeyLike, check_features, check_positive
from weft.modules.drawing import parameter_keys
from weft.modules.dtypes import cast, compute_dtype, promote
from weft.modules.op import op


@op
def linear_recurrence(
    decay: Inexact[Array, "state"],
    inputs: Inexact[Array, "*batch time state"],
    initial: Inexact[Array, "*batch state"] | None = None,
) -> Inexact[Array, "*batch time state"]:
    """`h[t] = decay * h[t - 1] + inputs[t]`, in as many steps as the logarithm of time.

    Args:
        decay: the diagonal of the matrix.
        inputs: the values to add at each time.
        initial: the state before; by default zero.

    >>> linear_recurrence(jnp.array([0.5]), jnp.ones((3, 1))).ravel().tolist()
    [1.0, 1.5, 1.75]

    Source: Blelloch, "Prefix Sums and Their Applications", 1990.
    """
    if initial is not None:
        # The initial state enters as an addition to the first input, so that one scan serves both cases.
        inputs = inputs.at[..., 0, :].add(jnp.expand_dims(decay, range(initial.ndim - 1)) * initial)

    def join(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    decays = jnp.broadcast_to(decay, inputs.shape).astype(inputs.dtype)
    return jax.lax.associative_scan(join, (decays, inputs), axis=inputs.ndim - 2)[1]


class DiagonalSSM(Module):
    """A state-space layer with a diagonal, complex matrix: `h = decay * h + B x`, `y = Re(C h) + D * x`.

    Training cannot bring the modulus of a decay to one. Complex parameters are stored as pairs of real arrays. The
    state is complex64 or wider, whatever the dtype of input and result.

    Args:
        features: size of the last axis, of input and output.
        state: size of the state.
        key: a typed key, for the parameters.
        radius: the smallest and the largest size of decay before training; near one it remembers long.
        phase: the largest angle of decay before training.

    Raises:
        ConfigError: if a size is not positive, or the radii are not between zero and one, in order.

    >>> layer = DiagonalSSM(4, 8, key=jax.random.key(0))
    >>> layer(jnp.ones((2, 10, 4))).shape
    (2, 10, 4)

    Source: Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023 (the LRU).
    """

    log_rate: Float[Array, "state"]
    phase: Float[Array, "state"]
    inward: Float[Array, "2 features state"]
    outward: Float[Array, "2 state features"]
    skip: Float[Array, "features"]

    def __init__(
        self,
        features: int,
        state: int,
        *,
        key: KeyLike,
        radius: tuple[float, float] = (0.9, 0.999),
        phase: float = 2 * math.pi,
    ):
        check_positive("DiagonalSSM", features=features, state=state)
        low, high = radius
        if not 0 < low <= high < 1:
            raise ConfigError(f"DiagonalSSM: radius must be a pair with 0 < low <= high < 1, not {radius}")
        rate_key, phase_key, in_key, out_key, skip_key = parameter_keys(key, 5, "DiagonalSSM")
        # Uniform on the ring between the two radii.
        square = jax.random.uniform(rate_key, (state,)) * (high**2 - low**2) + low**2
        # The parameter is log(-log(modulus)): exp(-exp(p)) is below one for every p, so the recurrence cannot blow up.
        self.log_rate = jnp.log(-0.5 * jnp.log(square))
        self.phase = phase * jax.random.uniform(phase_key, (state,))
        # The first axis has the real and the imaginary parts; each has half of the variance.
        self.inward = jax.random.normal(in_key, (2, features, state)) / math.sqrt(2 * features)
        self.outward = jax.random.normal(out_key, (2, state, features)) / math.sqrt(state)
        self.skip = jax.random.normal(skip_key, (features,))

    def decay(self) -> Complex[Array, "state"]:
        """The diagonal of the matrix, as complex numbers within the unit circle.

        >>> layer = DiagonalSSM(3, 4, key=jax.random.key(0))
        >>> layer.decay().shape, bool((abs(layer.decay()) < 1).all())
        ((4,), True)
        """
        log_rate, phase = self._wide(self.log_rate, self.phase)
        return jnp.exp(jax.lax.complex(-jnp.exp(log_rate), phase))

    def __call__(self, x: Float[Array, "*batch time features"]) -> Float[Array, "*batch time features"]:
        """The outputs at all times, from a state of zero.

        Raises:
            AxisError: if the last axis is not of size `features`.
        """
        check_features(self, x, self.skip.shape[0])
        return self._out(linear_recurrence(self.decay(), self._in(x)), x)

    def step(
        self, x: Float[Array, "*batch features"], h: Complex[Array, "*batch state"] | None = None
    ) -> tuple[Float[Array, "*batch features"], Complex[Array, "*batch state"]]:
        """One time, as in decoding: the output and the state to go on from; without one it begins at zero.

        >>> layer = DiagonalSSM(4, 8, key=jax.random.key(0))
        >>> y, h = layer.step(jnp.ones(4))
        >>> y, h = layer.step(jnp.ones(4), h)
        >>> bool(jnp.allclose(y, layer(jnp.ones((2, 4)))[1], atol=1e-5))
        True
        """
        check_features(self, x, self.skip.shape[0])
        after = self._in(x)
        if h is not None:
            after = after + jnp.expand_dims(self.decay(), range(after.ndim - 1)) * h
        return self._out(after, x), after

    def _wide(self, *arrays: Any) -> list[Any]:
        """Casts arrays to the dtype of the state's parts: complex numbers have no fewer than 32 bits for each."""
        return promote(*arrays, dtype=jnp.promote_types(compute_dtype(*arrays), jnp.float32))

    def _in(self, x: Any) -> Any:
        x, inward = promote(x, self.inward)
        inward, log_rate = self._wide(inward, self.log_rate)
        # Inputs are scaled so that the state keeps their size, however long it remembers.
        scaled = cast(inward * jnp.sqrt(-jnp.expm1(-2 * jnp.exp(log_rate)))[None, None, :], x.dtype)
        return jax.lax.complex(*self._wide(x @ scaled[0], x @ scaled[1]))

    def _out(self, h: Any, x: Any) -> Any:
        # The result keeps the dtype of its input, as the sum of a residual branch and its input does.
        dtype = compute_dtype(x)
        x, outward, skip = promote(x, self.outward, self.skip)
        y = cast(h.real, x.dtype) @ outward[0] - cast(h.imag, x.dtype) @ outward[1]
        return cast(y + jnp.expand_dims(skip, range(x.ndim - 1)) * x, dtype)

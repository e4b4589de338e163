"""Lines that a checker must refuse: if one passed, the types above would be saying nothing."""

from __future__ import annotations

import jax.numpy as jnp
from ensemble import Linear, train_step
from ensemble.layers import make_encoder

encoder = make_encoder(3, 4)
print(encoder.up.wieght)  # no such field
print(encoder.replace(norm=encoder.norm).up.name.real)  # replace gives the record's own type
train_step(encoder)  # jit keeps the signature
train_step(encoder, jnp.ones((2, 3)), rate="fast")  # and the types in it
text: str = train_step(encoder, jnp.ones((2, 3)))  # and the result
Linear(jnp.ones((1, 1)))  # a field without a default
Linear(jnp.ones((1, 1)), None, name=3)  # a static field has its own type

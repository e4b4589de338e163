import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax.numpy as jnp
from flax import nnx
from layers import Scale

model = nnx.Sequential(Scale(nnx.Rngs(0)), nnx.Linear(3, 1, rngs=nnx.Rngs(1)))
print(model(jnp.ones((2, 3))).ravel())

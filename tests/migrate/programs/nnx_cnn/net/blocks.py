from functools import partial

import jax
from flax import (
    nnx as nn,  # as Linen is called
)


class Block(nn.Module):
    def __init__(self, features_in, features_out, *, rngs):
        self.conv = nn.Conv(features_in, features_out, kernel_size=(3, 3), rngs=rngs)
        self.norm = nn.BatchNorm(features_out, momentum=0.9, rngs=rngs)
        self.drop = nn.Dropout(0.25, rngs=rngs)
        self.pool = partial(nn.avg_pool, window_shape=(2, 2), strides=(2, 2))

    def __call__(self, x):
        return self.pool(self.drop(jax.nn.relu(self.norm(self.conv(x)))))

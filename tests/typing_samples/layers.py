"""What static checkers know of layers: attention by whether it has a cache, networks by whether a carry comes back."""

from typing import reveal_type

import jax
import weft
from jax import Array

KEY = jax.random.key(0)


class Block(weft.Module):
    attention: weft.MultiHeadAttention

    def __call__(self, x: Array) -> Array:
        return x + self.attention(x)


def attention(x: Array) -> None:
    pure = weft.MultiHeadAttention(8, 2, causal=True, key=KEY)
    cached = pure.with_cache(16)
    reveal_type(pure(x))  # Array
    reveal_type(cached(x))  # tuple[Array, MultiHeadAttention[KeyValueCache]]
    reveal_type(cached.without_cache()(x))  # Array
    reveal_type(weft.Residual(pure)(x))  # Array
    reveal_type(weft.TransformerBlock(8, 2, key=KEY)(x))  # Array
    pure(x, mask=x, positions=x)
    pure(x, masks=x)  # error: No parameter named "masks"
    reveal_type(weft.Stack(lambda key: weft.TransformerBlock(8, 2, key=key), 2, key=KEY)(x))  # Array


def recurrent(x: Array) -> None:
    rnn = weft.RNN(weft.GRUCell(3, 4, key=KEY))
    reveal_type(rnn)  # RNN[Array]
    reveal_type(rnn(x, return_carry=True))  # tuple[Array, Any]
    weft.GRUCell(3, key=KEY)  # error: Argument missing for parameter "hidden_features"
    weft.Bidirectional(rnn, rnn)(x, lengths=x)

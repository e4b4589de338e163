"""Linear maps: the pure ops `linear`, `embed` and `attend`, and the records `Linear` and `Embed`."""

from __future__ import annotations

from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, Int
from weft.core.records.module import Module, static
from weft.modules.construct import ConfigError, Initializer, KeyLike, check_features, check_positive, option_dtype
from weft.modules.drawing import draw
from weft.modules.dtypes import as_array, cast, promote
from weft.modules.explicit import Dimensions, is_divided, laid_like, on_mesh_of, once, product_sharding, spec_of
from weft.modules.op import kept_options, op

# The same initialisers as in flax: LeCun's normal for kernels. In a table of embeddings the fan-in is the number of
# features, because a lookup reads one row and does not sum over rows.
default_kernel_init = initializers.lecun_normal()
default_embedding_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


@op
def linear(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, "out"] | None = None,
    *,
    dtype: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    dot_general: Any = lax.dot_general,
    out_sharding: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch out"]:
    """`x @ kernel + bias`.

    Args:
        x: inputs, with any leading axes.
        kernel: weights.
        bias: added at the end, if given.
        dtype: the dtype to compute in; by default what the arguments promote to.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.
        dot_general: the product, with the arguments of `jax.lax.dot_general`.
        out_sharding: of the product, in explicit-sharding mode.
        promote: what casts the arguments to the dtype to compute in, as `promote` does.

    >>> linear(jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4)).tolist()[0]
    [4.0, 4.0, 4.0, 4.0]
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    options = product_options(out_dtype, out_sharding)
    y = product_of(dot_general, x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision=precision, **options)
    return y if bias is None else add_bias(y, bias)


def product_of(dot_general: Any, x: Any, kernel: Any, dimensions: Dimensions, **options: Any) -> Any:
    """Multiplies, and has the result lie as the rule for explicit meshes says if the options do not tell where."""
    # A product of the user's own may know no `out_sharding`, so the rule holds for JAX's only.
    if "out_sharding" not in options and dot_general is lax.dot_general:
        options |= product_options(None, product_sharding(x, kernel, dimensions))
    return dot_general(x, kernel, dimensions, **options)


def product_options(out_dtype: Any, out_sharding: Any) -> dict[str, Any]:
    """Returns the options that are set: a product function of the user's own may know neither of them."""
    options = {"preferred_element_type": out_dtype, "out_sharding": out_sharding}
    return {name: value for name, value in options.items() if value is not None}


def add_bias(y: Float[Array, "*batch out"], bias: Float[Array, "out"]) -> Float[Array, "*batch out"]:
    """`y + bias`, with the bias along the last axis.

    >>> add_bias(jnp.ones((2, 2)), jnp.array([1.0, 2.0])).tolist()
    [[2.0, 3.0], [2.0, 3.0]]
    """
    wide = jnp.reshape(bias, (1,) * (y.ndim - 1) + bias.shape)
    # `lax.add` refuses two dtypes; `jnp.add` promotes, but takes longer to trace in each layer.
    if y.dtype != wide.dtype:
        dtype = jnp.promote_types(y.dtype, wide.dtype)
        y, wide = cast(y, dtype), cast(wide, dtype)
    return lax.add(y, laid_like(wide, y))


@op
def embed(
    ids: Int[Array, "*batch"],
    embedding: Float[Array, "vocab features"],
    *,
    dtype: Any = None,
    promote: Any = promote,
    exact: bool = False,
) -> Float[Array, "*batch features"]:
    """Looks up rows of an embedding table.

    Args:
        ids: the numbers of the rows.
        embedding: the table.
        dtype: the dtype of the result; by default the table's.
        promote: as in `linear`.
        exact: whether every id below 0 or beyond the table is NaN. Otherwise it is as in flax: a negative id counts
            from the end, one beyond the table is NaN, and a table of one row gives that row for every id.

    >>> table = jnp.array([[1.0], [2.0]])
    >>> embed(jnp.array([1, 0, -1]), table).tolist(), embed(jnp.array([1, 0, -1]), table, exact=True).tolist()
    ([[2.0], [1.0], [2.0]], [[2.0], [1.0], [nan]])
    """
    (embedding,) = promote(embedding, dtype=dtype, inexact=False)
    if exact and jnp.issubdtype(ids.dtype, jnp.signedinteger):
        # JAX counts a negative id from the end, so -1 for padding would look up the last row. The largest integer is
        # out of range, which `take` turns into NaN.
        ids = lax.select(lax.lt(ids, lax.full_like(ids, 0)), lax.full_like(ids, np.iinfo(ids.dtype).max), ids)
    # As in flax: a table of one row is a constant, for which no gather is needed.
    elif embedding.shape[0] == 1:
        return jnp.broadcast_to(embedding, (*ids.shape, embedding.shape[1]))
    if is_divided(ids, embedding):
        # On an explicit mesh JAX asks for the sharding of the rows. They lie where their ids do.
        spec = once((*spec_of(ids), spec_of(embedding)[1]))
        return embedding.at[ids].get(mode="fill", out_sharding=on_mesh_of(spec, ids, embedding))
    return jnp.take(embedding, ids, axis=0)


@op
def attend(
    query: Float[Array, "*batch features"],
    embedding: Float[Array, "vocab features"],
    *,
    dtype: Any = None,
    out_sharding: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch vocab"]:
    """Returns the inner products of queries with every row of an embedding table, as for tied output weights.

    >>> attend(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    query, embedding = promote(query, embedding, dtype=dtype)
    dimensions = (((query.ndim - 1,), (1,)), ((), ()))
    return product_of(lax.dot_general, query, embedding, dimensions, **product_options(None, out_sharding))


class LinearOptions(TypedDict, total=False):
    """The options of a `Linear`, for layers that are made of several."""

    use_bias: bool
    kernel_init: Initializer
    bias_init: Initializer
    dtype: Any
    param_dtype: Any
    out_dtype: Any
    precision: Any


class Linear(Module):
    """A linear map of the last axis: `y = x @ kernel + bias`.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        key: a typed key, for the parameters.
        use_bias: whether to add a bias.
        kernel_init: initialiser from `jax.nn.initializers`.
        bias_init: likewise.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> import jax
    >>> Linear(3, 4, key=jax.random.key(0))(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    """

    kernel: Float[Array, "in out"]
    bias: Float[Array, "out"] | None
    dtype: Any = static()
    out_dtype: Any = static()
    precision: Any = static()

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        key: KeyLike,
        use_bias: bool = True,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        out_dtype: Any = None,
        precision: Any = None,
    ):
        check_positive("Linear", in_features=in_features, out_features=out_features)
        kernel = kernel_init, (in_features, out_features), param_dtype
        bias = (bias_init, (out_features,), param_dtype) if use_bias else None
        self.kernel, self.bias = draw(key, "Linear", kernel, bias)
        self.dtype, self.out_dtype, self.precision = option_dtype(dtype), option_dtype(out_dtype), precision

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Maps the last axis.

        Raises:
            AxisError: if its size is not `in`.
        """
        check_features(self, x, self.kernel.shape[0])
        return linear(x, self.kernel, self.bias, **kept_options(self, linear))


class Embed(Module):
    """A table of vectors, looked up by integers.

    An id below 0 or beyond the table, such as -1 for padding, gives NaN: compiled code cannot raise.

    Args:
        vocab: number of rows.
        features: size of each.
        key: a typed key, for the parameters.
        embedding_init: initialiser from `jax.nn.initializers`.
        dtype: the dtype of looked-up rows and of `attend`; by default the table's, and what query and table promote to.
        param_dtype: the dtype of the table.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> import jax
    >>> table = Embed(10, 4, key=jax.random.key(0))
    >>> h = table(jnp.array([[1, 2, 3]]))
    >>> h.shape, table.attend(h).shape
    ((1, 3, 4), (1, 3, 10))
    """

    embedding: Float[Array, "vocab features"]
    dtype: Any = static()

    def __init__(
        self,
        vocab: int,
        features: int,
        *,
        key: KeyLike,
        embedding_init: Initializer = default_embedding_init,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
    ):
        check_positive("Embed", vocab=vocab, features=features)
        (self.embedding,) = draw(key, "Embed", (embedding_init, (vocab, features), param_dtype))
        self.dtype = option_dtype(dtype)

    def __call__(self, ids: Int[Array, "*batch"]) -> Float[Array, "*batch features"]:
        """Looks up rows; an id below 0 or beyond the table gives NaN.

        Raises:
            ConfigError: if the ids are not integers.
        """
        ids = as_array(ids)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ConfigError(
                f"Embed looks up integers, not {ids.dtype}", fix="cast the ids, or use Linear on one-hots"
            )
        return embed(ids, self.embedding, dtype=self.dtype, exact=True)

    def attend(self, query: Float[Array, "*batch features"]) -> Float[Array, "*batch vocab"]:
        """Returns the inner products with every row: the logits of tied weights.

        Raises:
            AxisError: if the last axis is not of size `features`.
        """
        check_features(self, query, self.embedding.shape[1])
        return attend(query, self.embedding, dtype=self.dtype)

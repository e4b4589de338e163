"""JAX's own names and texts that weft looks for in jaxprs, tracebacks and errors.

If JAX changes one, code that looks for it silently finds nothing. So `tests/core/edge/test_names.py` traces a program
for each name, and provokes an error for each text.
"""

from __future__ import annotations

from types import CodeType

# Primitives of several operands that work element by element.
ELEMENTWISE = frozenset((
    "add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "nextafter", "and", "or", "xor", "eq", "ne",
    "lt", "le", "gt", "ge", "igamma", "igammac", "polygamma", "zeta", "select_n", "add_any", "clamp",
))  # fmt: skip
# Primitives of one operand that work element by element.
UNARY = frozenset((
    "neg", "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "sqrt", "rsqrt", "cbrt",
    "abs", "sign", "floor", "ceil", "round", "is_finite", "not", "erf", "erfc", "erf_inv", "integer_pow", "square",
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "digamma", "lgamma", "bessel_i0e", "bessel_i1e",
    "convert_element_type", "stop_gradient", "real", "imag", "copy", "reduce_precision",
))  # fmt: skip
# JAX's function that a `vmap` returns.
MAPPED = "vmap_f"
# Functions through which a reduction keeps an axis of size 1.
KEEPING = frozenset((
    "norm", "logsumexp", "softmax", "log_softmax", "mean", "sum", "max", "min", "prod", "var", "std", "median",
))  # fmt: skip
# Functions by which a user asks for an axis of size 1; `x[:, None]` is the second.
ASKING = frozenset((
    "expand_dims", "rewriting_take", "atleast_1d", "atleast_2d", "meshgrid",
))  # fmt: skip
# Functions by which a user asks for another shape.
RESHAPING = frozenset(("reshape", "_reshape"))
# Parts of the names of JAX's files for reductions and for indexing.
REDUCTIONS_FILE, INDEXING_FILE = "reductions.py", "indexing"
# The file of JAX's initialisers. Since 0.11 these test whether a product of sizes is 0 before they divide by it.
INITIALISERS_FILE = "jax/_src/nn/initializers.py"
# The beginning of the names of functions that only forward a method of a tracer.
FORWARDING = "_forward_"
# The function by which JAX needs the numbers of a value, and its local variables: the conversion, and the value.
ASKS_FOR_VALUES, ASKED_BY, ASKED_OF = "concrete_or_error", "force", "val"

# The module of the class in which `eqx.tree_at` wraps leaves while it searches those to replace.
TREE_AT = "equinox._tree"

# ---- the texts of errors -------------------------------------------------------------------------------------------

# A tracer where none is allowed: the text has the name of its class, compared in lower case.
A_TRACER = "tracer"
# An array whose buffer is deleted, and one that would be donated twice.
DELETED, DONATED_TWICE = "delete", "same buffer twice"
# The class, private to JAX, of errors about shardings on explicit meshes.
CLASS_OF_SHARDINGS = "ShardingTypeError"
# A mapped axis of `vmap`, and a scanned axis of `scan`, whose sharding the transform refuses.
MAPPED_APART, SLICED_APART = "Mapped away dimension of inputs", "0th dimension of all xs should be replicated"
# A traced shape, for which JAX raises a plain TypeError.
TRACED_SHAPE = "Shapes must be 1D sequences of concrete values"
# A tracer for a `nondiff_argnums` argument of a `custom_vjp`; outside of transforms an array is accepted there.
NOT_DIFFERENTIATED = "indicated by nondiff_argnums"
# An operation that is refused while tracing, such as `jax.set_mesh`.
OUTSIDE_ONLY = "can only be used outside of `jax.jit`"
# The error if two cache keys cannot be compared, and the class of weft's that the keys contain.
NOT_COMPARED, OUTCOME = "Cache keys should be comparable using __eq__", "weft.core.interpreter.rules.OutcomeNode"
# A leaf that cannot be traced: as an argument of a compiled call, and where a call is eager.
NOT_ABSTRACT, NOT_OF_JAX = "as an abstract array", "is not a valid JAX array type"
# An array that does not fit the requested sharding; the text after it says why.
UNFIT_SHARDING = "is incompatible with its sharding annotation "
# A `ShapeDtypeStruct` where a value is needed.
NO_VALUE = "is not a valid JAX type"
# A tuple where an array is needed: the texts of Python, NumPy and JAX.
A_TUPLE = "'tuple'", "tuple indices", "fixed-type tuple", "is not a valid JAX array type"
# The reverse derivative of a loop whose number of steps is traced.
NO_REVERSE = "Reverse-mode differentiation does not work for lax.while_loop"
# Operands with different numbers of axes.
UNLIKE_RANKS = "ndim to be equal, got "
# An axis name that no transform around has; the name follows.
UNBOUND_AXIS = "unbound axis name: "
# The texts before and after the message of `eqx.error_if` in XLA's error.
CLASS_OF_EQUINOX = "_EquinoxRuntimeError"
OF_EQUINOX, END_OF_EQUINOX = f"{CLASS_OF_EQUINOX}: ", "\n--------------------"
# The beginning of a message of `weft.error_if` there.
OF_ERROR_IF = "weft.error_if: "
# The logger and the text by which JAX reports a callback that raised.
LOGGER, LOGGED = "jax._src.callback", "jax.pure_callback failed"


# ---- a name that Python gives ---------------------------------------------------------------------------------------


def is_generated(code: CodeType) -> bool:
    """Whether `dataclasses` generated a function. It gives such code no file; neither has the code of `python -c`."""
    return code.co_filename == "<string>" and code.co_qualname.startswith("__create_fn__")

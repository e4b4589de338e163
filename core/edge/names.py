"""JAX's own names and words, where weft goes by them: what looks for one falls silent when JAX changes it.

`tests/core/edge/test_names.py` traces a program for each name, and provokes an error for each word.
"""

# Primitives of several operands that work element by element.
ELEMENTWISE = frozenset((
    "add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "nextafter", "and", "or", "xor", "eq", "ne",
    "lt", "le", "gt", "ge", "select_n", "add_any", "clamp",
))  # fmt: skip
# Primitives of one operand that work element by element.
UNARY = frozenset((
    "neg", "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "sqrt", "rsqrt", "cbrt",
    "abs", "sign", "floor", "ceil", "round", "is_finite", "not", "erf", "erfc", "erf_inv", "integer_pow", "square",
    "convert_element_type", "stop_gradient", "real", "imag", "copy", "reduce_precision",
))  # fmt: skip
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
# Parts of the names of the files that hold reductions, and indexing.
REDUCTIONS_FILE, INDEXING_FILE = "reductions.py", "indexing"
# The file of JAX's initialisers. Since 0.11 they ask whether a product of sizes is 0 before they divide by it.
INITIALISERS_FILE = "jax/_src/nn/initializers.py"
# How the functions begin that only pass a method of a tracer on.
FORWARDING = "_forward_"
# The function in which JAX asks a value for numbers, and its locals that say by what, and of what.
ASKS_FOR_VALUES, ASKED_BY, ASKED_OF = "concrete_or_error", "force", "val"

# The module of the class in which `eqx.tree_at` wraps leaves while it looks for those to replace.
TREE_AT = "equinox._tree"

# ---- the words of errors -------------------------------------------------------------------------------------------

# A tracer where none can be: JAX says the name of its class, in lower case here.
A_TRACER = "tracer"
# An array whose buffer is gone, and one that would be given away twice.
DELETED, DONATED_TWICE = "delete", "same buffer twice"
# The class of errors about shardings that are types, which is private.
CLASS_OF_SHARDINGS = "ShardingTypeError"
# Axes of arguments that a transform takes apart, divided over a mesh as it cannot: in `vmap`, and in `scan`.
MAPPED_APART, SLICED_APART = "Mapped away dimension of inputs", "0th dimension of all xs should be replicated"
# A shape that is traced: a plain TypeError.
TRACED_SHAPE = "Shapes must be 1D sequences of concrete values"
# A tracer for an argument of a `custom_vjp` that its rules are built with: a plain call takes an array there.
NOT_DIFFERENTIATED = "indicated by nondiff_argnums"
# What a program can only do outside of a trace, such as setting a mesh.
OUTSIDE_ONLY = "can only be used outside of `jax.jit`"
# What the keys of a cache raise that are compared, and the class whose instances they hold.
NOT_COMPARED, OUTCOME = "Cache keys should be comparable using __eq__", "weft.core.interpreter.rules.OutcomeNode"
# A leaf that cannot be traced: as an argument of a compiled call, and where a call is eager.
NOT_ABSTRACT, NOT_OF_JAX = "as an abstract array", "is not a valid JAX array type"
# An array that cannot lie as it shall; what comes after says why.
UNFIT_SHARDING = "is incompatible with its sharding annotation "
# A mere shape where a value is needed.
NO_VALUE = "is not a valid JAX type"
# A tuple where an array is needed: what Python says, NumPy, and JAX.
A_TUPLE = "'tuple'", "tuple indices", "fixed-type tuple", "is not a valid JAX array type"
# A loop whose number of steps is traced, differentiated in reverse.
NO_REVERSE = "Reverse-mode differentiation does not work for lax.while_loop"
# An axis by a number that none of an array's has.
NO_SUCH_AXIS = "out of bounds for array of dimension"
# Operands of unlike numbers of axes.
UNLIKE_RANKS = "ndim to be equal, got "
# An axis by name, outside of what maps over it; the name follows.
UNBOUND_AXIS = "unbound axis name: "
# How the message of `eqx.error_if` stands in the text of XLA's error: from, and to.
CLASS_OF_EQUINOX = "_EquinoxRuntimeError"
OF_EQUINOX, END_OF_EQUINOX = f"{CLASS_OF_EQUINOX}: ", "\n--------------------"
# How a message of `weft.error_if` begins in it.
OF_ERROR_IF = "weft.error_if: "
# What JAX logs, with a traceback, where a callback fails.
LOGGER, LOGGED = "jax._src.callback", "jax.pure_callback failed"

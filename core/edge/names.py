"""JAX's own names, where weft goes by them: a lint that looks for a function's name falls silent when JAX renames it.

`tests/core/edge/test_names.py` traces a program for each and looks for the name.
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
# How the functions begin that only pass a method of a tracer on.
FORWARDING = "_forward_"

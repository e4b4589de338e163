"""weft threads state through JAX's transforms."""

from weft.core import *

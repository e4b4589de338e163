"""`weft.ops`, a shorter name of `weft.modules.ops`."""

import sys

import weft.modules.ops

sys.modules[__name__] = weft.modules.ops

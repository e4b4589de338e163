"""`weft.tree`, a shorter name of `weft.modules.learning.tree`."""

import sys

import weft.modules.learning.tree

sys.modules[__name__] = weft.modules.learning.tree

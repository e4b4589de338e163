"""`weft.metrics`, a shorter name of `weft.modules.learning.metrics`."""

import sys

import weft.modules.learning.metrics

sys.modules[__name__] = weft.modules.learning.metrics

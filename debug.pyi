# For static checkers: `weft.debug` is this module, under a shorter name.
from weft.insight.debug import *

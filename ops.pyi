# For static checkers: `weft.ops` is this module, under a shorter name.
from weft.modules.ops import *

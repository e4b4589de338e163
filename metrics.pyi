# For static checkers: `weft.metrics` is this module, under a shorter name.
from weft.modules.learning.metrics import *

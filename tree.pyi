# For static checkers: `weft.tree` is this module, under a shorter name.
from weft.modules.learning.tree import *

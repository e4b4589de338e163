# For static checkers: `weft.filters` is this module, under a shorter name.
from weft.core.records.filters import *

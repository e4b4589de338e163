"""One matcher for run time and proofs: annotations against values, with the names that they bind."""

# Each puts the rows of its annotations into the table of `compiling`.
from weft.typecheck.matching import arrays as arrays
from weft.typecheck.matching import containers as containers
from weft.typecheck.matching import plain as plain
from weft.typecheck.matching import records as records
from weft.typecheck.matching import stacks as stacks
from weft.typecheck.matching import structures as structures

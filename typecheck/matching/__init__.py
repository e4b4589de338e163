"""Checks values against annotations and binds the names in them, for calls at run time and for proofs alike."""

# Importing these modules fills `compiling.CASES`: each registers the annotations that it checks.
from weft.typecheck.matching import arrays as arrays
from weft.typecheck.matching import containers as containers
from weft.typecheck.matching import plain as plain
from weft.typecheck.matching import records as records
from weft.typecheck.matching import stacks as stacks
from weft.typecheck.matching import structures as structures

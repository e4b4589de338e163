"""Argument values for proofs, made from annotations alone at sizes that the proof chooses."""

# Importing these modules fills `builder.BUILDERS`: each registers the annotations that it can build.
from weft.typecheck.arguments import arguments as arguments
from weft.typecheck.arguments import stand_ins as stand_ins
from weft.typecheck.arguments import values as values

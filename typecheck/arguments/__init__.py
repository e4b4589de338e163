"""Arguments made from annotations alone, at any sizes, for proofs."""

# Each puts what it can build into the table of `builder`.
from weft.typecheck.arguments import arguments as arguments
from weft.typecheck.arguments import stand_ins as stand_ins
from weft.typecheck.arguments import values as values

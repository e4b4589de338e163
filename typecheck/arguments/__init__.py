"""Arguments made from annotations alone, at any sizes, for proofs."""

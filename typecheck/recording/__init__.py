"""Recorded calls: the structures of arguments that functions received, and proofs that start from them."""

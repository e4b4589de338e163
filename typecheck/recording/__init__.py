"""Recorded calls: the structure of the arguments that functions were called with, and proofs that start from it."""

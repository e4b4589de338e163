"""Streams of random keys, and functions that split, fork and reseed them."""

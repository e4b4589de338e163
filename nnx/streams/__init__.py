"""Streams of random keys, and how transforms split them."""

"""Insight: what weft knows of a program, for people. `weft.debug` says where a number goes wrong."""

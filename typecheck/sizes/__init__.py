"""Sizes of a trace that record every comparison made of them, as polynomials over named dims; see README.md."""

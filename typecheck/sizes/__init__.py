"""Sizes that know themselves: what they are in terms of the dims, and what was asked of them; see README.md."""

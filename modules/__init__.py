"""Layers as records, the combinators that thread state through them, and their pure ops."""

__all__: list[str] = []

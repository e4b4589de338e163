"""Layers over graphs."""

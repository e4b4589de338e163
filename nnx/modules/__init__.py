"""Modules: pytrees with attributes, containers of them, their views, and what their calls capture."""

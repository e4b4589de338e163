"""Graphs of objects: taken apart into structure and state, put together again, walked, and planned for."""

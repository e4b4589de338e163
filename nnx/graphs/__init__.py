"""Graphs of objects: how to flatten, rebuild, walk and update them, and plans that remember an analysis."""

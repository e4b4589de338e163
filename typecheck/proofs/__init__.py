"""Contracts for all sizes: trials at symbolic and prime sizes, the search for needs, and the report."""

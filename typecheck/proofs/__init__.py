"""Contracts for all sizes: trials at symbolic and prime sizes, the search for what is needed, the report."""

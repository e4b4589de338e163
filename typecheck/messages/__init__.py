"""Puts a mismatch into words: what is wrong, where each dim was bound, and the likely fix."""

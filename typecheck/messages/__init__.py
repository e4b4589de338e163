"""A mismatch in words: what, where each dim was bound, and the likely fix."""

"""Annotations as data: dims, shapes, signatures, and the classes whose fields bind dims."""

"""`weft check`: proofs over files and packages, as a linter."""

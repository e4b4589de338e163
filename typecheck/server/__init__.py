"""`weft lsp`: shows findings and shapes in the editor at each save; see README.md."""

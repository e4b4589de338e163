"""`weft lsp`: findings and shapes in the editor, as one types; see README.md."""

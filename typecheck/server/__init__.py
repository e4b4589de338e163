"""`weft lsp`: findings and shapes in the editor, as one saves; see README.md."""

"""The text of objects, and trees in notebooks."""

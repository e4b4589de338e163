"""How objects are shown: text, and trees in notebooks."""

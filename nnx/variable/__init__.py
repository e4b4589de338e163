"""Variables: a value with metadata that is changed in place, its kinds, its traces and its operators."""

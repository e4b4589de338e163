"""Variables: mutable boxes of a value and metadata; their kinds, trace levels, operators and hijax forms."""

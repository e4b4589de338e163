"""Records: immutable pytrees with kinds, filters over leaves, configuration in the structure, split and merge."""

"""The symbolic shape of each value that a program's lines assign, read off a trace; see README.md."""

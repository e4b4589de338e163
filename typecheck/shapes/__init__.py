"""The symbolic shape of everything that the lines of a program assign, read off a trace; see README.md."""

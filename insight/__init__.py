"""What weft knows of a program, for people: loaded on first use (`weft.debug`, `weft.plan`)."""

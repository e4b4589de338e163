"""Tools that look into a program: loaded on first use (`weft.plan`)."""

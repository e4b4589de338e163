"""`weft.debug` and `weft.plan`: tools that inspect a program. They are imported when they are first used."""

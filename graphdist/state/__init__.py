"""Variables: their declaration, the meaning of each read and write, and their storage."""

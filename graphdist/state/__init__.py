"""Variables: what they are, what each read and write means, and where their values lie."""

"""Variables: what they are, what each read and write means, and how their values are stored."""

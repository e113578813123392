"""A function on its way to a call: traced for a signature, lowered, compiled and called."""

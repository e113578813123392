"""Compiled functions: traced for a signature, lowered, compiled and called."""

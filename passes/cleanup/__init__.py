"""Passes: operations that need not run."""

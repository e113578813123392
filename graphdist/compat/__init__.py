"""Names of older APIs."""

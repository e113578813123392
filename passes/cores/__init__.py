"""The split of a replica over its cores."""

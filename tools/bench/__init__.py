"""The benchmark: the costs and gains of graphdist, against others in the same run."""

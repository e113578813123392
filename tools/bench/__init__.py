"""The benchmark: what graphdist costs and gains, against others in the same run."""

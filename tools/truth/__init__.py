"""Predicted steps against published training runs: `python -m graphdist.tools.truth`."""

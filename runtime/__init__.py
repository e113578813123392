"""From the SPMD graph to StableHLO, to an executable, to its calls."""

if __name__ != "graphdist.runtime":
    raise ImportError("import graphdist.runtime, not runtime: the repository root is on sys.path")

"""Command-line tools and benchmarks."""

if __name__ != "graphdist.tools":
    raise ImportError("import graphdist.tools, not tools: the repository root is on sys.path")

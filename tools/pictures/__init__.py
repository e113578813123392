"""The pictures of docs/images: `python -m graphdist.tools.pictures`."""

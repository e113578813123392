"""The pages of docs/ that are made from code: `python -m graphdist.tools.documents`."""

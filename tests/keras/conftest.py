"""Keras on JAX for every test of this folder."""

import graphdist.keras  # noqa: F401 - imported before keras, it chooses the backend

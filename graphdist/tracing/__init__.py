"""From a Python function to a logical graph. The only package that touches `jax.extend.core`."""

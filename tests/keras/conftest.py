"""Keras on JAX for every test of this folder, with the same random numbers in any order."""

import graphdist.keras  # noqa: F401, I001 - imported before keras, it chooses the backend

import keras
import pytest


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed what initializes the layers of a test: otherwise the tests before it would decide."""
    keras.utils.set_random_seed(0)

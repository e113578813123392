"""Messages with arrays: they arrive as they were sent, completely or not at all."""

from __future__ import annotations

from multiprocessing import Pipe
from threading import Thread
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from graphdist.parameter_server.connections import receive, send


def sent(message: Any) -> Any:
    """Return a message after its way; what is larger than the system keeps needs a thread."""
    here, there = Pipe()
    with here, there:
        thread = Thread(target=send, args=(there, message))
        thread.start()
        found = receive(here)
        thread.join()
        return found


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(3_000_000, dtype=np.float32),
        np.zeros((0, 3), np.float32),
        np.float32(3),
        np.arange(24).reshape(4, 6)[::2, 1:],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.asarray(jnp.arange(4, dtype=jnp.bfloat16)),
        np.array([True, False]),
    ],
    ids=str,
)
def test_arrays_arrive_as_they_were_sent(array: Any) -> None:
    name, (found, other) = sent(("apply", (array, np.ones(2))))
    assert name == "apply"
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(other, [1, 1])


def test_a_message_whose_arrays_break_off_is_none() -> None:
    here, there = Pipe()
    heads, taken = Pipe()
    with here, heads, taken:
        thread = Thread(target=send, args=(taken, np.arange(100)))
        thread.start()
        there.send_bytes(heads.recv_bytes())
        thread.join()
        there.close()
        with pytest.raises(EOFError):
            receive(here)

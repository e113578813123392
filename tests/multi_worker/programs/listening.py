"""Workers that say at which addresses their process listens, once they have made a step."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np

import graphdist as gd

_LISTENS = "0A"


def listening() -> list[str]:
    """Return the addresses at which this process listens for TCP."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = []
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        lines = Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and fields[9] in inodes:
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.append(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return sorted(set(found))


strategy = gd.MultiWorkerMirroredStrategy()
one = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
total = strategy.reduce("SUM", one, axis=None)
print("SAYS", json.dumps([float(total), listening()]), flush=True)

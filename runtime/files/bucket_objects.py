"""The objects below a prefix of a bucket, in Google Cloud Storage or S3.

`tensorstore` sends the requests. It repeats them for some 15 minutes while a server does not
answer, and the log says so. Each object has a generation that changes with every write, and a write
may depend on it. tensorstore's threads do not survive a fork, so a forked process is refused.

Errors are `CheckpointError`, so that an outage is not taken for a damaged checkpoint. Only a
missing object is a `FileNotFoundError`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple  # Any: tensorstore, which is imported when a bucket is opened

from graphdist.runtime.files.checkpoint_files import CheckpointError

_DRIVERS = {"gs": "gcs", "s3": "s3"}
_PROCESS = os.getpid()
_SECONDS_OF_SILENCE = 20.0
"""After how many seconds without an answer the log says so."""
_log = logging.getLogger("graphdist")
_CREDENTIALS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or `gcloud auth application-default login`",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile; AWS_ENDPOINT_URL for a "
    "server other than Amazon's",
}


class S3Server(NamedTuple):
    """A server that speaks S3."""

    address: str = ""
    """Its address; "" for Amazon's."""
    region: str = ""
    """Its region; "" where the server is asked for it."""
    has_key: bool = False
    """Whether the environment has the key, so that no other place is looked at for one."""


class StoredObject(NamedTuple):
    """The content of an object and its generation; the content is None if there is no object."""

    content: bytes | None
    generation: bytes


@dataclass(frozen=True)
class BucketObjects:
    """The objects of a bucket below a prefix, by their keys after it."""

    url: str
    """`gs://<bucket>/<prefix>` or `s3://<bucket>/<prefix>`."""
    server: S3Server

    def read(self, key: str, part: slice | None = None) -> StoredObject:
        """Return an object, or the bytes `part` of it.

        Raises `ValueError` if the object has not all of these bytes.
        """
        options = {} if part is None else {"byte_range": part}
        found = self._done(lambda store: store.read(key, **options), f"{key} cannot be read")
        return StoredObject(found.value if found.state == "value" else None, found.stamp.generation)

    def content(self, key: str, part: slice | None = None) -> bytes:
        """Return what `read` does; raises `FileNotFoundError` if there is no object."""
        content = self.read(key, part).content
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "it is not there", key)
        return content

    def write(
        self,
        key: str,
        content: bytes | bytearray | None,
        if_generation: bytes | None = None,
        seconds: float | None = None,
    ) -> bytes | None:
        """Write an object, or remove it if `content` is None; return its new generation.

        With `if_generation`, only if this is the object's generation; returns None if it is not.
        `seconds` limits how long requests are repeated.
        """
        condition = {} if if_generation is None else {"if_equal": if_generation}
        stamp = self._done(
            lambda store: store.write(key, content, **condition),
            f"{key} cannot be written",
            seconds,
        )
        return bytes(stamp.generation) or None

    def listed(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that start with a prefix."""
        listed = self._done(lambda store: store.list(_range(prefix)), "it cannot be listed")
        yield from (key.decode("utf-8", "surrogateescape") for key in listed)

    def remove_all(self, prefix: str) -> None:
        """Remove all objects whose keys start with a prefix."""
        self._done(lambda store: store.delete_range(_range(prefix)), f"{prefix} cannot be removed")

    @property
    def _scheme(self) -> str:
        return self.url.partition(":")[0]

    def spec(self) -> dict[str, Any]:
        """Return what tensorstore is told to open these objects."""
        scheme, _, path = self.url.partition("://")
        bucket, _, prefix = path.partition("/")
        spec: dict[str, Any] = {
            "driver": _DRIVERS[scheme],
            "bucket": bucket,
            "path": prefix and f"{prefix}/",
        }
        if scheme == "s3" and self.server.address:
            spec |= {"endpoint": self.server.address, "aws_region": "us-east-1"}
        if scheme == "s3" and self.server.region:
            spec["aws_region"] = self.server.region
        if scheme == "s3" and self.server.has_key:
            spec["aws_credentials"] = {"type": "environment"}
        return spec

    def _done(
        self, request: Callable[[Any], Any], failed: str, seconds: float | None = None
    ) -> Any:
        """Return the result of a request; raises `CheckpointError` if it fails."""
        if os.getpid() != _PROCESS:
            raise CheckpointError(
                f"{self.url} is used in process {os.getpid()}, which was forked from process "
                f"{_PROCESS}: the threads that send requests do not survive a fork",
                hint='start the process anew: multiprocessing.get_context("spawn")',
            )
        try:
            result = request(_opened(self))
            if seconds is None:
                with suppress(TimeoutError):
                    return result.result(_SECONDS_OF_SILENCE)
                _log.warning(
                    "%s does not answer, or there are no credentials (%s); the request is repeated",
                    *(self.url, _CREDENTIALS[self._scheme]),
                )
            return result.result(seconds)
        except Exception as error:  # tensorstore raises the exceptions of Python by its status
            if str(error).startswith("OUT_OF_RANGE"):
                raise ValueError("it is cut short, or was not written to its end") from error
            said = str(error).partition(" [")[0].partition("\n")[0]
            if isinstance(error, TimeoutError):
                said = f"there was no answer for {seconds:g} s"
            raise CheckpointError(
                f"{self.url}: {failed}: {said}",
                hint=f"the bucket must exist, and credentials be set: {_CREDENTIALS[self._scheme]}",
            ) from error


@lru_cache(maxsize=64)
def _opened(objects: BucketObjects) -> Any:
    return import_module("tensorstore").KvStore.open(objects.spec()).result()


def _range(prefix: str) -> Any:
    """Return the range of the keys that start with a prefix."""
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
    return import_module("tensorstore").KvStore.KeyRange(prefix, after)

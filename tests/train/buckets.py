"""Servers of buckets on this host: moto for S3, and one that speaks the protocol of Google's.

The second is our own: the emulators on PyPI ignore conditions on generations, which decide between
two writers.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any  # Any: JSON
from urllib.parse import parse_qs, unquote, urlsplit

S3_VARIABLES = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run a server with the bucket `bucket`; yield the variables of the environment for it."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    address = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="bucket")
    try:
        yield {**S3_VARIABLES, "AWS_ENDPOINT_URL": address}
    finally:
        server.stop()


@contextmanager
def gs_server() -> Iterator[dict[str, str]]:
    """Run a server with all buckets; yield the variables of the environment for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Requests,), {"objects": {}}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield {"TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token"}
    finally:
        server.shutdown()
        server.server_close()


class _Requests(BaseHTTPRequestHandler):
    """Answers the requests for objects, as https://cloud.google.com/storage/docs/json_api says."""

    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # the head and the body of an answer in one packet
    disable_nagle_algorithm = True
    objects: dict[str, tuple[int, bytes]]
    generations = itertools.count(1)
    lock = threading.Lock()

    def do_GET(self) -> None:
        name, query = self._target()
        with self.lock:
            if name:
                generation, content = self.objects.get(name, (0, b""))
                if generation and query.get("alt") == "json":
                    content = json.dumps(_metadata(name, generation, content)).encode()
                self._answer_part(generation, content)
                return
            start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
            items = [{"name": each} for each in sorted(self.objects) if start <= each < end]
            self._answer(200, json.dumps({"items": items}).encode())

    def do_POST(self) -> None:
        _, query = self._target()
        content = self.rfile.read(int(self.headers["content-length"]))
        with self.lock:
            if self._is_met(query["name"], query):
                generation = next(self.generations)
                self.objects[query["name"]] = generation, content
                stored = _metadata(query["name"], generation, content)
                self._answer(200, json.dumps(stored).encode())

    def do_DELETE(self) -> None:
        name, query = self._target()
        with self.lock:
            if self._is_met(name, query):
                self._answer(204 if self.objects.pop(name, None) else 404)

    def _answer_part(self, generation: int, content: bytes) -> None:
        """Answer with an object, or with the range of bytes that the request names."""
        headers = {"x-goog-generation": str(generation)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if not generation or not wanted:
            self._answer(200 if generation else 404, content, headers)
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
        if start >= end:
            self._answer(416)
            return
        headers["content-range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._answer(206, content[start:end], headers)

    def _target(self) -> tuple[str, dict[str, str]]:
        """Return the name of the object, "" for the list of them, and the query."""
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        return unquote(split.path.partition("/o/")[2]), query

    def _is_met(self, name: str, query: dict[str, str]) -> bool:
        """Return whether a condition on the generation is met; answer if it is not."""
        generation = str(self.objects.get(name, (0, b""))[0])
        is_met = query.get("ifGenerationMatch", generation) == generation
        if not is_met:
            self._answer(412)
        return is_met

    def _answer(self, status: int, content: bytes = b"", headers: Any = ()) -> None:
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def _metadata(name: str, generation: int, content: bytes) -> dict[str, str]:
    """Return what the server says of an object."""
    return {"name": name, "generation": str(generation), "size": str(len(content))}

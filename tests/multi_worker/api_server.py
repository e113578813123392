"""A server that answers as the API server of Kubernetes does, for a job of two pods.

It has what `jax.distributed.initialize()` asks for in a pod: the pod of an IP address, and the job
that the pod belongs to. Requests without the token of the service account are refused.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any  # Any: JSON
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

TOKEN, NAMESPACE, JOB, SET = "token of the account", "default", "train-workers-0", "train"
ADDRESSES = ["127.0.0.1", "127.0.0.2"]
"""Of the pods: a pod is found by its address."""


def labels_of(is_jobset: bool) -> dict[str, str]:
    return {"jobset.sigs.k8s.io/jobset-name": SET} if is_jobset else {}


def pod(index: int, is_jobset: bool) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": "1", "controller": True}
    return {
        "metadata": {
            "name": f"{JOB}-{index}-x7k2p",
            "labels": {"job-name": JOB, **labels_of(is_jobset)},
            "ownerReferences": [owner],
        },
        "spec": {"subdomain": SET, "containers": [{"name": "worker"}]},
        "status": {"podIP": ADDRESSES[index]},
    }


def job(is_jobset: bool) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker"}]}}
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    return {"metadata": {"name": JOB, "labels": labels_of(is_jobset)}, "spec": spec}


@contextmanager
def api_server(folder: Path, is_jobset: bool, may_read: bool = True) -> Iterator[int]:
    """Run a server, and write the files of a service account to a folder; yield the port."""
    handler = type("Handler", (_Requests,), {"is_jobset": is_jobset, "may_read": may_read})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(folder))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text(NAMESPACE)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _Requests(BaseHTTPRequestHandler):
    is_jobset: bool
    may_read: bool

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        selected = parse_qs(split.query).get("fieldSelector", [""])[0]
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token != TOKEN:
            self._answer(401, {"message": "Unauthorized"})
        elif not self.may_read:
            self._answer(403, {"message": "pods is forbidden"})
        elif split.path == f"/api/v1/namespaces/{NAMESPACE}/pods":
            pods = [pod(index, self.is_jobset) for index in range(2)]
            items = [p for p in pods if selected == f"status.podIP={p['status']['podIP']}"]
            self._answer(200, {"apiVersion": "v1", "kind": "PodList", "items": items})
        elif split.path == f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{JOB}":
            self._answer(200, {"apiVersion": "batch/v1", "kind": "Job", **job(self.is_jobset)})
        else:
            self._answer(404, {"message": f"{split.path} is not there"})

    def _answer(self, status: int, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of this host, as `ca.crt`, and its key; return both files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "ca.crt", folder / "server.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files

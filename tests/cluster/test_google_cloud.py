"""Clusters on Google Cloud: Google's own clients, which ask a server of the test's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any  # Any: messages of Google's
from urllib.parse import parse_qs, urlsplit

import pytest

import graphdist as gd

ENDPOINTS = [{"ip_address": "10.0.0.1", "port": 8471}, {"ip_address": "10.0.0.2"}]


def anonymous() -> Any:
    """Return the credentials of nobody."""
    from google.auth import credentials

    nobody: Any = credentials.AnonymousCredentials
    return nobody()


@contextmanager
def tpus(answer: Callable[[str], Any]) -> Iterator[Any]:
    """Yield a client of a server that answers which hosts a TPU of a name has."""
    import grpc
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    method = grpc.unary_unary_rpc_method_handler(
        lambda request, context: answer(request.name),
        request_deserializer=tpu_v2.GetNodeRequest.deserialize,
        response_serializer=tpu_v2.Node.serialize,
    )
    service = grpc.method_handlers_generic_handler("google.cloud.tpu.v2.Tpu", {"GetNode": method})
    server = grpc.server(ThreadPoolExecutor(1), handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    server.stop(None).wait()


@contextmanager
def compute_engine(addresses: dict[str, str], asked: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the clients of a server that has these instances, two on each page."""
    from google.cloud import compute_v1

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            name = urlsplit(self.path).path.rpartition("/")[2]
            self._answer({"networkInterfaces": [{"networkIP": addresses[name]}]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(f"{self.path} {body}")
            start = int(parse_qs(urlsplit(self.path).query).get("pageToken", ["0"])[0])
            items = [{"instance": f"https://c/zones/z/instances/{name}"} for name in addresses]
            more = {"nextPageToken": str(start + 2)} if len(items) > start + 2 else {}
            self._answer({"items": items[start : start + 2], **more})

        def _answer(self, answer: Any) -> None:
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = Thread(target=server.serve_forever)
    thread.start()
    options: dict[str, Any] = {
        "credentials": anonymous(),
        "client_options": {"api_endpoint": f"http://127.0.0.1:{server.server_port}"},
    }
    with (
        compute_v1.InstanceGroupsClient(**options) as groups,
        compute_v1.InstancesClient(**options) as instances,
    ):
        yield groups, instances
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.needs("gce")
def test_a_tpu_is_looked_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    asked = []

    def answer(name: str) -> Any:
        asked.append(name)
        return {"state": "READY", "network_endpoints": ENDPOINTS}

    with tpus(answer) as service:
        resolver = gd.cluster.TPUClusterResolver("pod", "z", "p", service=service)
        assert resolver.cluster_spec() == {"worker": ["10.0.0.1:8471", "10.0.0.2:8470"]}
        assert resolver.master() == "grpc://10.0.0.2:8470"
    assert set(asked) == {"projects/p/locations/z/nodes/pod"}


@pytest.mark.needs("gce")
@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"state": "CREATING", "network_endpoints": ENDPOINTS}, "'CREATING', not 'READY'"),
        ({"network_endpoints": ENDPOINTS}, "'STATE_UNSPECIFIED', not 'READY'"),
        ({"state": "READY"}, "hosts without an address"),
        ({"state": "READY", "network_endpoints": [{"port": 1}]}, "hosts without an address"),
    ],
)
def test_a_tpu_that_is_not_ready(node: Any, says: str) -> None:
    with tpus(lambda name: node) as service:
        resolver = gd.cluster.TPUClusterResolver("pod", "z", "p", service=service)
        with pytest.raises(gd.ContextError, match=says):
            resolver.cluster_spec()


@pytest.mark.needs("gce")
def test_instances_of_a_group_come_from_all_pages() -> None:
    asked: list[str] = []
    addresses = {"a": "10.0.0.3", "b": "10.0.0.1", "c": "10.0.0.2"}
    with compute_engine(addresses, asked) as service:
        resolver = gd.cluster.GCEClusterResolver("p", "z", "g", 8470, service=service)
        hosts = [f"10.0.0.{number}:8470" for number in (1, 2, 3)]
        assert resolver.cluster_spec() == {"worker": hosts}
    listed = [each for each in asked if "/projects/p/zones/z/instanceGroups/g/" in each]
    assert len(listed) == 2
    assert all("RUNNING" in each for each in listed)


@pytest.mark.needs("gce")
def test_an_instance_without_an_address() -> None:
    with compute_engine({"a": ""}, []) as service:
        resolver = gd.cluster.GCEClusterResolver("p", "z", "g", 8470, service=service)
        with pytest.raises(gd.ContextError, match="instance 'a' has no address"):
            resolver.cluster_spec()


@pytest.mark.needs("gce")
def test_the_clients_are_made_with_the_credentials() -> None:
    given = anonymous()
    gd.cluster.GCEClusterResolver("p", "z", "g", 8470, credentials=given)
    gd.cluster.TPUClusterResolver("pod", "z", "p", credentials=given)


def test_clients_of_the_earlier_library_are_refused() -> None:
    service: Any = SimpleNamespace(projects=lambda: None, instanceGroups=lambda: None)
    with pytest.raises(gd.ArgumentTypeError, match="no client of the libraries google-cloud"):
        gd.cluster.TPUClusterResolver("pod", "z", "p", service=service)
    with pytest.raises(gd.ArgumentTypeError, match="no client of the libraries google-cloud"):
        gd.cluster.GCEClusterResolver("p", "z", "g", 8470, service=service)


def test_there_is_no_discovery() -> None:
    with pytest.raises(gd.UnsupportedError, match="TPUs are looked up without a discovery"):
        gd.cluster.TPUClusterResolver("pod", "z", "p", discovery_url="https://example.com")

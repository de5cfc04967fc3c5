"""The part of Kubernetes' API that kubectl needs: objects are made and deleted, logs are followed.

It keeps what it is given and runs nothing: a test sees what real kubectl makes of the commands of a
page.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "/api/v1": {"secrets": "Secret", "services": "Service", "pods": "Pod", "pods/log": "Pod"},
    "/apis/batch/v1": {"jobs": "Job"},
    "/apis/jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class Api:
    """What the server has: objects by their paths, and the logs of pods by name."""

    def __init__(self, logs: Mapping[str, str]) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.logs = logs
        self.selectors: list[str] = []
        """Of the lists of pods that were asked for."""

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.objects.values()]

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if path in KINDS:
            return 200, _resources(path)
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [_group(*each.split("/")[2:]) for each in KINDS if each.startswith("/apis/")]
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "/openapi/v2":
            return 200, b""  # a document without definitions
        if path.endswith("/pods"):
            self.selectors += query.get("labelSelector", [])
            pods = [_pod(name) for name in self.logs]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
        if path.endswith("/log"):
            return 200, self.logs[path.split("/")[-2]].encode()
        if path in self.objects:
            return 200, self.objects[path]
        return 404, {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}


def _group(name: str, version: str) -> dict[str, Any]:
    of_group = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [of_group], "preferredVersion": of_group}


def _resources(path: str) -> dict[str, Any]:
    names = {"namespaced": True, "verbs": VERBS, "singularName": ""}
    found = [{"name": name, "kind": kind, **names} for name, kind in KINDS[path].items()]
    version = path.removeprefix("/apis/").removeprefix("/api/")
    return {"kind": "APIResourceList", "groupVersion": version, "resources": found}


def _pod(name: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


def _of_protobuf(collection: str, body: bytes) -> dict[str, Any]:
    """As much of an object as tests look at: its kind, its name and the bytes.

    The name is the first string of the first message of the object, which is inside of another.
    """
    group, _, plural = re.sub("/namespaces/[^/]+", "", collection).rpartition("/")
    kind = KINDS[group][plural]
    found = re.search(rb"\n.\n.([a-z0-9-]+)", body.partition(kind.encode())[2], re.S)
    assert found, body
    version = group.removeprefix("/apis/").removeprefix("/api/")
    named = {"name": found[1].decode()}
    return {"kind": kind, "apiVersion": version, "metadata": named, "body": body.decode("latin1")}


@contextlib.contextmanager
def served(folder: Path, logs: Mapping[str, str]) -> Iterator[tuple[Api, Path]]:
    """A server on a port of its own, and the ``KUBECONFIG`` that names it."""
    api = Api(logs)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(api)) as server:
        config = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        context = {"cluster": "test", "namespace": "default", "user": "test"}
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "contexts": [{"name": "test", "context": context}],
                    "users": [{"name": "test", "user": {}}],
                }
            )
        )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield api, config
        finally:
            server.shutdown()
            thread.join()


def _handler(api: Api) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            self._answer(*api.get(asked.path, parse_qs(asked.query)))

        def do_POST(self) -> None:
            collection = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made = json.loads(body) if body.startswith(b"{") else _of_protobuf(collection, body)
            path = f"{collection}/{made['metadata']['name']}"
            api.objects[path] = made
            self._answer(201, made)

        def do_DELETE(self) -> None:
            """The object is gone at once, so that kubectl, which waits for this, finds it gone."""
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = urlsplit(self.path).path
            found = api.objects.pop(path, None)
            self._answer(200, found) if found else self._answer(*api.get(path, {}))

        def _answer(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = "application/json" if not isinstance(body, bytes) else "text/plain"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler

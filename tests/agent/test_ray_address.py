"""A Ray cluster that cannot be reached is told in one line: nothing of Ray's stands before it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import Done, run

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def dashboard() -> Iterator[str]:
    """An address at which something else listens, as on the port of Ray's pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def join(folder: Path, address: str, **environment: str) -> Done:
    options = ("--device", "cpu", "--engine", "ray", "--ray-address", address)
    return run(folder, "optimize", "mse", *options, environment=environment, timeout_s=60)


@pytest.mark.slow
def test_something_else_listens_at_the_address(tmp_path: Path, dashboard: str) -> None:
    done = join(tmp_path, dashboard)
    line = f"no Ray cluster answers at {dashboard}: what listens there is no Ray"
    assert (done.code, done.err) == (2, f"warpsmith: {line}\n")


@pytest.mark.slow
def test_the_cluster_of_this_node_is_gone(tmp_path: Path) -> None:
    done = join(tmp_path, "auto", RAY_ADDRESS=NOWHERE)
    line = "no Ray cluster answers at auto: [Errno 111] Connection refused"
    assert (done.code, done.err) == (2, f"warpsmith: {line}\n")

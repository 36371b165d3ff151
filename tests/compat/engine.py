# SPDX-License-Identifier: Apache-2.0
"""A container engine whose containers are processes: programs that start an image of Pulsar start penstock's commands.

    python engine.py COMMAND [ARGUMENT]...

runs a command with DOCKER_HOST set to such an engine, and ends with its status.

Why: Testcontainers' own code has to decide whether the image can be used, and a daemon can't be had everywhere. What
is run is what the steps of the image install (`ops/image/install.sh`), with the command and the environment that the
caller gave; ports are mapped, so clients come by other addresses than the broker knows. What differs from a container:
/pulsar in a command is a directory of this run, the broker's ports are any free ones, and nothing is isolated.
Where: `run`, for the kit `testcontainers`.

It answers those requests of Docker's Engine API that a container of one process needs, and 404 to all others. No
network, no volume, no build, no files: a caller that asks for these fails, and does not believe that it has them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.compat.mapped_port import MappedPort  # noqa: E402 -- a program, started by its path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMAGE: Final = "penstock:latest"
IMAGE_ID: Final = f"sha256:{'0' * 64}"
HOME: Final = "/pulsar"
LONG_AGO: Final = "2026-01-01T00:00:00Z"
# The ports of the image, the words of the line that says where they are, and the settings that choose them.
PORTS: Final = {"6650/tcp": (2, "PULSAR_PREFIX_brokerServicePort"), "8080/tcp": (3, "PULSAR_PREFIX_webServicePort")}
ENDING_S: Final = 60.0
LOG_PAUSE_S: Final = 0.05
_STDOUT: Final = 1


class Container:
    """One container: a process with the caller's command and environment, its log, and its mapped ports."""

    def __init__(self, asked: dict[str, Any], home: Path) -> None:
        self.id = uuid.uuid4().hex * 2
        self.asked = asked
        self.log = home / f"{self.id}.log"
        self.log.touch()
        self.ports = {name: MappedPort() for name in PORTS}
        self._home = home / self.id
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int:
        """Exit status; 0 while there is none."""
        return (self._process.poll() or 0) if self._process is not None else 0

    def start(self) -> None:
        """Run the command, in a directory that has what the image has."""
        inside = dict(one.split("=", 1) for one in self.asked.get("Env") or ())
        outside = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self._home)}
        free_ports = {setting: "0" for _, setting in PORTS.values()}
        steps = ["sh", str(ROOT / "ops/image/install.sh"), str(self._home)]
        subprocess.run(steps, env=outside, check=True, capture_output=True)
        words = [*(self.asked.get("Entrypoint") or ()), *(self.asked.get("Cmd") or ("bin/pulsar", "standalone"))]
        self._process = subprocess.Popen(
            [re.sub(rf"(?<![\w./]){HOME}\b", str(self._home), word) for word in words],
            cwd=self._home,
            env={**outside, **inside, **free_ports, "PULSAR_DATA_DIR": str(self._home / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader.start()

    def _read(self) -> None:
        """Keep what is printed; when the broker says where its ports are, let the mapped ones lead there."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("ab", buffering=0) as log:
            for line in self._process.stdout:
                if line.startswith(b"penstock ready "):
                    urls = line.decode().split()
                    for name, (word, _) in PORTS.items():
                        self.ports[name].lead_to(f"tcp://127.0.0.1:{urlsplit(urls[word]).port}")
                log.write(line)

    def end(self, how: signal.Signals) -> None:
        """End the process and all that it has started."""
        if self._process is None:
            return
        if self.is_running:
            os.killpg(self._process.pid, how)
        self._process.wait(ENDING_S)
        self._reader.join()

    def close(self) -> None:
        """End the process, and give everything back."""
        self.end(signal.SIGKILL)
        for port in self.ports.values():
            port.close()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def described(self) -> dict[str, Any]:
        """Return what `inspect` answers."""
        bound = {
            name: [{"HostIp": "127.0.0.1", "HostPort": str(urlsplit(one.url).port)}] for name, one in self.ports.items()
        }
        network = {"NetworkID": "bridge", "IPAddress": "127.0.0.1", "Gateway": "127.0.0.1"}
        return {
            "Id": self.id,
            "Name": f"/{self.id[:12]}",
            "Created": LONG_AGO,
            "Image": IMAGE_ID,
            "State": {
                "Status": "running" if self.is_running else "exited",
                "Running": self.is_running,
                "ExitCode": self.status,
                "StartedAt": LONG_AGO,
                "FinishedAt": "0001-01-01T00:00:00Z" if self.is_running else LONG_AGO,
            },
            "Config": {**self.asked, "Image": IMAGE},
            "HostConfig": self.asked.get("HostConfig") or {},
            "NetworkSettings": {"Ports": bound, "Networks": {"bridge": network}, "IPAddress": "127.0.0.1"},
            "Mounts": [],
        }


class Engine:
    """All containers, and the answers about them."""

    def __init__(self, home: Path) -> None:
        self.containers: dict[str, Container] = {}
        self._home = home
        # By verb and path, without the version of the API.
        self.routes: dict[str, Callable[..., object]] = {
            r"(?:GET|HEAD) /_ping": lambda: b"OK",
            r"GET /info": lambda: {
                "ID": "processes",
                "ServerVersion": "28.0.0",
                "OperatingSystem": "processes",
                "OSType": "linux",
                "Architecture": "x86_64",
                "MemTotal": 1 << 30,
                "NCPU": 1,
                "Containers": len(self.containers),
            },
            r"GET /version": lambda: {
                "Version": "28.0.0",
                "ApiVersion": "1.48",
                "MinAPIVersion": "1.24",
                "Os": "linux",
            },
            r"GET /images/json": lambda: [{**_IMAGE, "Created": 0}],
            rf"GET /images/(?:docker.io/(?:library/)?)?{IMAGE}/json": lambda: _IMAGE,
            r"POST /(?:containers|networks|volumes|images)/prune": dict,
            r"GET /containers/json": list,
            r"POST /containers/create": self._create,
            r"POST /containers/(\w+)/start": lambda name: self.containers[name].start(),
            r"GET /containers/(\w+)/json": lambda name: self.containers[name].described(),
            r"POST /containers/(\w+)/stop": lambda name: self.containers[name].end(signal.SIGTERM),
            r"POST /containers/(\w+)/kill": lambda name: self.containers[name].end(signal.SIGKILL),
            r"DELETE /containers/(\w+)": lambda name: self.containers.pop(name).close(),
        }

    def _create(self, **asked: object) -> dict[str, Any]:
        container = Container(asked, self._home)
        self.containers[container.id] = container
        return {"Id": container.id, "Warnings": []}


_IMAGE: Final = {
    "Id": IMAGE_ID,
    "RepoTags": [IMAGE],
    "Created": LONG_AGO,
    "Os": "linux",
    "Architecture": "amd64",
    "Size": 0,
    "Config": {"WorkingDir": HOME, "Cmd": ["bin/pulsar", "standalone"], "ExposedPorts": {name: {} for name in PORTS}},
}


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            parts = urlsplit(self.path)
            path = re.sub(r"^/v[\d.]+", "", unquote(parts.path))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                if self.command == "GET" and (found := re.fullmatch(r"/containers/(\w+)/logs", path)):
                    self._logs(engine.containers[found[1]], follow="follow" in parse_qs(parts.query))
                    return
                for route, answer in engine.routes.items():
                    if found := re.fullmatch(route, f"{self.command} {path}"):
                        self._answer(answer(*found.groups(), **(json.loads(body) if body.strip() else {})))
                        return
            except KeyError as missing:
                self._answer({"message": f"No such container: {missing}"}, HTTPStatus.NOT_FOUND)
                return
            self._answer({"message": f"this engine has no {self.command} {path}"}, HTTPStatus.NOT_FOUND)

        do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = _any  # noqa: N815 - names of the library

        def _answer(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
            if value is None:
                status = HTTPStatus.NO_CONTENT
            elif status == HTTPStatus.OK and isinstance(value, dict) and "Warnings" in value:
                status = HTTPStatus.CREATED
            data = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(value, bytes) else "application/json")
            self.send_header("Api-Version", "1.48")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _logs(self, container: Container, *, follow: bool) -> None:
            """Send what was printed; with `follow`, until the process has ended. Each piece has a header of 8 bytes."""
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/vnd.docker.multiplexed-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            with container.log.open("rb") as log:
                while True:
                    goes_on = follow and container.is_running
                    if piece := log.read():
                        self.wfile.write(bytes((_STDOUT, 0, 0, 0)) + len(piece).to_bytes(4, "big") + piece)
                    elif not goes_on:
                        return
                    else:
                        threading.Event().wait(LOG_PAUSE_S)

        def log_message(self, *_: object) -> None:
            """Nothing: the caller says what failed."""

    return Handler


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """Start an engine, and yield the variables that tell a program where it is, and what it does not have."""
    home = Path(tempfile.mkdtemp(prefix="engine-"))
    made = Engine(home)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="engine")
    thread.start()
    try:
        yield {
            "DOCKER_HOST": f"tcp://127.0.0.1:{server.server_port}",
            # A container that removes others, and one that measures the disk: images that are not here.
            "TESTCONTAINERS_RYUK_DISABLED": "true",
            "TESTCONTAINERS_CHECKS_DISABLE": "true",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for container in made.containers.values():
            container.close()
        shutil.rmtree(home, ignore_errors=True)


def main(command: list[str]) -> int:
    """Run a command with an engine; returns its exit status."""
    with engine() as variables:
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""One broker under measurement: started, driven load by load, restarted when a load wants it cold, and stopped.

Where: `run` holds one for each broker and takes them in turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.client import Client
from benchmarks.loads import FIRST, LOAD_TIMEOUT_S, PENSTOCK_WARM_UP_S, PLAIN, TLS
from benchmarks.process import Address, PeerError, ask, forget_pages, usage
from penstock.cli.bench_frames import Block, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from benchmarks.loads import Plan

REPOSITORY = Path(__file__).resolve().parent.parent
# Above the usual load with its drain; a generator that takes longer hangs.
GENERATOR_TIMEOUT_S = LOAD_TIMEOUT_S
TOPIC = "persistent://public/default/"


class LoadFailed(Exception):
    """A load ended with an error: a receipt missing or out of order, a wrong byte, a refusal."""


def acknowledge_one(port: int) -> None:
    """Publish one message by Pulsar's protocol, and wait for its receipt."""
    with closing(Client(port)) as client:
        client.open_producer(f"{TOPIC}first", 0)
        block = Block.make(Shape(1024), seed=0)
        client.socket.sendall(block.frames[: block.ends[0]])
        client.await_receipt()


@dataclass(frozen=True, slots=True)
class Driver:
    """How the brokers of one protocol are driven; by default, those of Pulsar's.

    Attributes:
        tool: the module of `benchmarks` that drives all their loads; "": the one that each load names.
        loads: the names of those that they have an equivalent of; None: of all.
        acknowledge_one: publishes one message at a port, and returns when it is acknowledged.
        warm_up_s: for how long each kind of work is done before anything is measured.
    """

    tool: str = ""
    loads: Collection[str] | None = None
    acknowledge_one: Callable[[int], None] = acknowledge_one
    warm_up_s: float = PENSTOCK_WARM_UP_S

    def without(self, names: Collection[str]) -> Driver:
        """The same, without some loads."""
        return replace(self, loads=[name for name in self.loads or () if name not in names])


class Subject:
    """A broker by name, with the data directory that its restarts share."""

    def __init__(
        self,
        name: str,
        launch: Callable[[Path], AbstractContextManager[Address]],
        data: Path,
        setups: Mapping[str, Callable[[Path], AbstractContextManager[Address]]] = MappingProxyType({}),
        driver: Driver = Driver(),
    ) -> None:
        """Keep how to start it; `setups` says how for loads that want it otherwise."""
        self.name, self.launch, self.data, self.setups, self.driver = name, launch, data, setups, driver
        self.running = ExitStack()
        self.address: Address | None = None
        self.rss_peak_mib = 0.0

    def has(self, load: str) -> bool:
        """Whether a load means something here."""
        return self.driver.loads is None or load in self.driver.loads

    def start(self) -> dict[str, float]:
        """Start it; return the seconds until it said it was ready, and until it had acknowledged one message."""
        self.address = self.running.enter_context(self.launch(self.data))
        ready_s = time.monotonic() - self.address.started_s
        self.driver.acknowledge_one(self.address.port)
        return {"ready s": ready_s, FIRST: time.monotonic() - self.address.started_s}

    def stop(self) -> None:
        """Stop it, and keep its highest memory."""
        if self.address is not None:
            with suppress(FileNotFoundError):  # It died; the load that it died in says so.
                self.rss_peak_mib = max(self.rss_peak_mib, usage(self.address.pid).rss_peak_mib)
            self.address = None
        self.running.close()

    def revive(self) -> None:
        """Start it again if it has died, or could not be restarted. Raises PeerError."""
        if self.address is None or not is_running(self.address.pid):
            self.stop()
            self.start()

    def drive(
        self, plan: Plan, *, seconds: float, seed: int, note: str, through: Mapping[str, object] = MappingProxyType({})
    ) -> dict[str, float]:
        """Run one load and return its figures; `through` says where a proxy is, if it goes through one.

        Raises:
            LoadFailed: it did not end well.
        """
        if plan.setup != PLAIN and plan.setup in self.setups:
            other = Subject(self.name, self.setups[plan.setup], self.data.with_name(f"{self.data.name}-{plan.name}"))
            try:
                other.start()
                return other.drive(plan, seconds=seconds, seed=seed, note=note)
            except PeerError as error:
                raise LoadFailed(str(error)) from error
            finally:
                other.stop()
                shutil.rmtree(other.data, ignore_errors=True)
        load: dict[str, object] = {
            "topic": f"{self.namespace(plan, note) if plan.policies else TOPIC}{plan.name}-{note}",
            "message_bytes": plan.shape.message_bytes,
            "messages": plan.shape.messages,
            "seconds": seconds,
            "producers": plan.producers,
            "connections": plan.connections,
            "window": plan.window,
            "subscriptions": plan.subscriptions,
            "entries": round(plan.backlog_per_s * seconds),
            "seed": seed,
            "options": dict(plan.options),
        }
        if plan.setup == TLS:
            assert self.address is not None, "a subject is driven only while it runs"
            load |= {"port": self.address.tls_port, "tls_ca": str(self.address.tls_ca)}
        if plan.backlog_per_s:
            self.generate(plan.tool, "backlog", load, plan.timeout_s)
            if plan.restarted or plan.cold:
                self.restart(cold=plan.cold)
        # What one broker left to be written must not be written during the other one's load.
        os.sync()
        return self.generate(plan.tool, plan.mode, load | dict(through), plan.timeout_s)

    def namespace(self, plan: Plan, note: str) -> str:
        """Create a namespace with the policies of a load; returns how the names of its topics begin."""
        assert self.address is not None, "a subject is driven only while it runs"
        path = f"namespaces/public/{plan.name}-{note}"
        try:
            ask(self.address.admin_port, "PUT", path)
            for policy, value in plan.policies.items():
                ask(self.address.admin_port, "POST", f"{path}/{policy}", value)
        except OSError as error:
            raise LoadFailed(f"{path}: {error}") from error
        return f"persistent://public/{plan.name}-{note}/"

    def generate(
        self, tool: str, mode: str, load: Mapping[str, object], timeout_s: float = GENERATOR_TIMEOUT_S
    ) -> dict[str, float]:
        """Run a generator process and return what it printed."""
        assert self.address is not None, "a subject is driven only while it runs"
        place = {"port": self.address.port, "admin_port": self.address.admin_port, "broker_pid": self.address.pid}
        load = {**place, **load}
        try:
            done = subprocess.run(
                [sys.executable, "-m", f"benchmarks.{self.driver.tool or tool}", mode, json.dumps(load)],
                capture_output=True,
                text=True,
                check=False,
                cwd=REPOSITORY,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise LoadFailed(f"the {tool} did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            raise LoadFailed(done.stderr.strip().rpartition("\n")[2] or f"the {tool} ended with {done.returncode}")
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def restart(self, *, cold: bool) -> None:
        """Stop the broker and start it again; if `cold`, its files are dropped from the page cache in between."""
        self.stop()
        if cold:
            forget_pages(self.data)
        self.start()


def is_running(pid: int) -> bool:
    """Say whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

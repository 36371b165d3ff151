# SPDX-License-Identifier: Apache-2.0
"""The broker that is attacked, under the kernel's limit, and what others see of it meanwhile.

Where: `run` and the tests of this folder put cases to it, one after another, and look at the findings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.memory_group import MemoryGroup
from benchmarks.process import Usage, forget_peak, usage
from penstock.core.units import MIB
from penstock.net.loop_turns import THRESHOLDS_MS
from penstock.testing.certificates import Certificate
from penstock.testing.client import RawClient, Type, frame
from penstock.testing.process import ProxyProcess
from penstock.testing.tokens import SECRET, data_url, token
from tests.abuse import own_time as own_time_program
from tests.abuse.commands import NAMESPACE_OF_MANY, SUBSCRIPTION, TOPIC
from tests.abuse.own_time import OwnTime
from tests.processes.cluster import Cluster, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPResponse
    from types import TracebackType

    from tests.abuse.cases import Case

ROOT: Final = Path(__file__).resolve().parents[2]

MEMORY_LIMIT_MB: Final = 256
SUPERVISOR_MB: Final = 48
# What a case may cost above its row of the memory budget.
ALLOWANCE_BYTES: Final = 64 * MIB
TURN_MS_MAX: Final = 50
PING_S_MAX: Final = 0.25
HEALTH_S_MAX: Final = 1.0
GIVEN_BACK_S_MAX: Final = 5.0
# How long it is waited for: how late it is, `judge` says.
GIVEN_BACK_WAIT_S: Final = 30.0
STOP_S_MAX: Final = 10.0

# What the books may differ by when all is given back: what is in flight while they are read.
BOOKS_SLACK_BYTES: Final = 64 * 1024
LOOK_S: Final = 0.1
PING_PAUSE_S: Final = 0.02
# Connections stay, unread, once everything was sent, until the broker has nothing more to do with it: until it uses
# less than this share of a processor for one look; at most so long.
BUSY: Final = 0.6
BUSY_LOOK_S: Final = 0.06
HOLD_S_MAX: Final = 0.5

# The first line of /metrics that has one row for each topic.
FIRST_OF_TOPICS: Final = b"# HELP pulsar_subscriptions_count "

TOPICS: Final = 2_000
LAST_ENTRY_BYTES: Final = 5 * MIB - 64 * 1024
ROLE: Final = "root"


# A proxy does all that it can do: it authenticates, limits the attacked namespaces, throttles, counts and records.
GROUPS: Final = f"""
[attacked]
publishRateInMsgs = 1000000
dispatchRateInMsgs = 1000000
namespaces = ["public/default", "{NAMESPACE_OF_MANY}"]
"""
GOVERNED: Final = (
    "authenticationEnabled=true\n"
    "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
    f"tokenSecretKey={data_url(SECRET)}\n"
    "brokerClientAuthenticationPlugin=token\n"
    f"brokerClientAuthenticationParameters=token:{token('proxy')}\n"
    "proxyTopicsAuthenticationPlugin=token\n"
    f"proxyTopicsAuthenticationParameters=token:{token(ROLE)}\n"
    "adaptivePublisherThrottlingEnabled=true\n"
    "usageRecordsEnabled=true\n"
    "governanceRecordsEnabled=true\n"
)


@dataclass(slots=True)
class Finding:
    """What one case did.

    Attributes:
        rss_bytes: the most resident memory, above what it was before the first case.
        row_bytes: the row of the memory budget that such a case may use.
        held_bytes: the most that the broker's own books said was in use.
        turn_ms: the highest threshold that a turn of the loop was longer than; 0 for none.
    """

    case: str
    sent_bytes: int = 0
    closed: int = 0
    rss_bytes: int = 0
    row_bytes: int = 0
    held_bytes: int = 0
    turn_ms: int = 0
    ping_s: float = 0.0
    health_s: float = 0.0
    given_back_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Write down which bounds were broken."""
        if self.rss_bytes > self.row_bytes + ALLOWANCE_BYTES:
            self.faults.append(
                f"RSS +{self.rss_bytes / MIB:.0f} MiB, allowed {(self.row_bytes + ALLOWANCE_BYTES) / MIB:.0f}"
            )
        if self.turn_ms >= TURN_MS_MAX:
            self.faults.append(f"a turn of the loop took more than {self.turn_ms} ms")
        if self.ping_s > PING_S_MAX:
            self.faults.append(f"PING answered after {self.ping_s * 1000:.0f} ms")
        if self.health_s > HEALTH_S_MAX:
            self.faults.append(f"/healthz after {self.health_s:.1f} s")
        if self.given_back_s > GIVEN_BACK_S_MAX:
            self.faults.append(f"not all given back after {GIVEN_BACK_S_MAX:.0f} s")

    def line(self) -> str:
        """As people read it."""
        per_byte = self.held_bytes / self.sent_bytes if self.sent_bytes else 0.0
        return (
            f"{self.case:<64} sent {self.sent_bytes / MIB:6.1f} MiB  RSS {self.rss_bytes / MIB:+6.1f}  "
            f"held/sent {per_byte:5.2f}  turn >{self.turn_ms:4d} ms  PING {self.ping_s * 1000:5.0f} ms  "
            f"healthz {self.health_s * 1000:5.0f} ms  back {self.given_back_s:4.1f} s"
        )


class Innocent:
    """Another client and a probe of the admin port, which ask all the time how long an answer takes."""

    def __init__(self, subject: Subject) -> None:
        self.ping_s = 0.0
        self.health_s = 0.0
        self.held_bytes = 0
        self.gone: list[str] = []
        self._subject = subject
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._ping, self._probe)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ping(self) -> None:
        client = self._subject.client
        while not self._ended.wait(PING_PAUSE_S):
            began = self._subject.now()
            try:
                client.write(frame(Type.PING))
                client.next(Type.PONG)
            except OSError as error:
                self.gone.append(f"PING: {error}")
                return
            self.ping_s = max(self.ping_s, self._subject.now() - began)

    def _probe(self) -> None:
        while not self._ended.is_set():
            began = self._subject.now()
            try:
                self._subject.check_health()
            except OSError as error:
                self.gone.append(f"/healthz: {error}")
                return
            self.health_s = max(self.health_s, self._subject.now() - began)
            with suppress(OSError):
                self.held_bytes = max(self.held_bytes, self._subject.held_bytes())
            self._ended.wait(LOOK_S)


class Subject:
    """A running broker and the process that attacks it.

    Of several brokers, the first is attacked; the last serves the topic that is asked for, and the other client is
    connected to it. So what concerns the topic is passed on, and both brokers are measured: the worse one counts.
    A proxy is attacked instead of the broker behind it: clients and callers are connected to the proxy, which is
    measured.
    """

    def __init__(
        self,
        broker: Cluster,
        tls_port: int,
        ca: Path,
        group: MemoryGroup | None,
        proxy: ProxyProcess | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: now: the clock by which others wait."""
        self.broker = broker
        self.attacked = proxy or broker
        self.group = group
        self.now = now
        self._last = broker.brokers - 1
        self._through = f"127.0.0.1:{broker.port}" if proxy is not None else ""
        self._admin_urls = broker.admin_urls if proxy is None else [proxy.admin_url]
        self._ports = {"plain": self.attacked.port, "tls": tls_port, "admin": self.attacked.admin_port}
        self._ca = ca
        self._token = token(ROLE)
        self.client = RawClient(self._ports["plain"] + self._last, connect=False)
        self._idle_rss: dict[int, int] = {}
        self._idle_books = 0
        self._attacker = subprocess.Popen(
            [sys.executable, "-m", "tests.abuse.attacker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    # -- before

    def begin(self) -> None:
        """Connect, make what is asked for, and look at the idle broker. `close` afterwards, also if this fails."""
        self._connect()
        self._prepare()
        self.figures()
        self._idle_rss = {pid: int(usage(pid).rss_mib * MIB) for pid in self._pids()}
        self._idle_books = _books(self.figures())

    def _connect(self) -> None:
        self.client.write(
            frame(
                Type.CONNECT,
                client_version="innocent",
                protocol_version=20,
                auth_method_name="token",
                auth_data=self._token.encode(),
                **({"proxy_to_broker_url": self._through} if self._through else {}),
            )
        )
        assert self.client.read().command.type == Type.CONNECTED

    def _prepare(self) -> None:
        """Topics to list, and one whose last entry and schema are as large as they may be."""
        tenant, namespace = NAMESPACE_OF_MANY.split("/")
        self._ask("PUT", f"/admin/v2/namespaces/{tenant}/{namespace}", b"{}")
        self._ask("PUT", f"/admin/v2/persistent/{tenant}/{namespace}/topic/partitions", str(TOPICS).encode())
        self.client.produce(TOPIC)
        self.client.subscribe(TOPIC, SUBSCRIPTION, permits=0)
        found = json.loads(self._ask("GET", f"/lookup/v2/topic/{TOPIC.replace('://', '/')}", None))
        assert found["brokerUrl"] == self.broker.urls[-1], f"{TOPIC} is not on the last broker: {found}"
        body = json.dumps({"type": "STRING", "schema": "", "properties": {"x": "y" * 20_000}}).encode()
        self._ask("POST", "/admin/v2/schemas/public/default/abused/schema", body)
        self.client.publish([b"x" * LAST_ENTRY_BYTES])

    # -- looking

    def check_health(self) -> None:
        """Ask all brokers how they are. Raises OSError."""
        for number in range(len(self._admin_urls)):
            self._asked("GET", "/healthz", None, number).close()

    def _ask(self, method: str, path: str, body: bytes | None) -> str:
        with self._asked(method, path, body) as answer:
            return answer.read().decode()

    def _asked(self, method: str, path: str, body: bytes | None, number: int = 0) -> HTTPResponse:
        request = urllib.request.Request(
            f"{self._admin_urls[number]}{path}",
            data=body,
            method=method,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return answer

    def figures(self) -> dict[str, float]:
        """The brokers' own account of themselves, in sum, without that of each topic, which is what follows."""
        figures: defaultdict[str, float] = defaultdict(float)
        for number in range(len(self._admin_urls)):
            with self._asked("GET", "/metrics", None, number) as answer:
                for line in answer:
                    if line.startswith(FIRST_OF_TOPICS):
                        break
                    if not line.startswith(b"#"):
                        name, _, value = line.decode().rpartition(" ")
                        figures[name] += float(value)
        return dict(figures)

    def held_bytes(self) -> int:
        """What the broker's books say it holds for clients, above what they said when it was idle."""
        return max(0, _books(self.figures()) - self._idle_books)

    def _pids(self) -> list[int]:
        """The processes that are attacked: one broker is a process, several are its children."""
        if self.attacked is not self.broker:
            return [self.attacked.pid]
        return list(self.broker.pids().values()) or [self.broker.pid]

    def _growth(self) -> int:
        """By how many bytes a broker has grown at most since it was idle; of several, the one that grew most."""
        return max(int(one.rss_peak_mib * MIB) - self._idle_rss.get(pid, 0) for pid, one in self._usages().items())

    def _cpu_s(self) -> float:
        return sum(one.cpu_s for one in self._usages().values())

    def _usages(self) -> dict[int, Usage]:
        try:
            return {pid: usage(pid) for pid in self._pids()}
        except (FileNotFoundError, KeyError):
            killed = self.group is not None and self.group.kills()
            raise RuntimeError("the kernel killed it at its limit" if killed else "it has ended") from None

    # -- attacking

    def put_to(self, case: Case) -> Finding:
        """Carry out one attack and say what it did."""
        before = self.figures()
        finding = Finding(str(case), row_bytes=_row_bytes(case, before))
        for pid in self._pids():
            forget_peak(pid)
        with Innocent(self) as innocent:
            answer = self.attack(case)
            self._hold()
            self.leave()
            finding.given_back_s = self._given_back()
        finding.sent_bytes, finding.closed = answer["sent"], answer["closed"]
        finding.rss_bytes = self._growth()
        finding.held_bytes = innocent.held_bytes
        finding.ping_s, finding.health_s = innocent.ping_s, innocent.health_s
        finding.faults += [f"the broker does not answer: {gone}" for gone in innocent.gone]
        if innocent.gone:
            return finding
        after = self.figures()
        finding.turn_ms = max(
            (ms for ms in THRESHOLDS_MS if _long_turns(after, ms) > _long_turns(before, ms)), default=0
        )
        if "error" in answer:
            finding.faults.append(f"the attack could not begin: {answer['error']}")
        finding.judge()
        return finding

    def _hold(self) -> None:
        until_s = time.monotonic() + HOLD_S_MAX
        used_s, busy = self._cpu_s(), True
        while busy and time.monotonic() < until_s:
            time.sleep(BUSY_LOOK_S)
            before_s, used_s = used_s, self._cpu_s()
            busy = used_s - before_s > BUSY * BUSY_LOOK_S

    def attack(self, case: Case) -> dict[str, Any]:
        """Let the attacker open its connections and send; they stay open."""
        return self._tell(
            json.dumps(
                {
                    "case": asdict(case),
                    "ports": self._ports,
                    "token": self._token,
                    "ca": str(self._ca),
                    "through": self._through,
                }
            )
        )

    def leave(self) -> None:
        """Let the attacker's connections end."""
        self._tell("")

    def _tell(self, line: str) -> dict[str, Any]:
        assert self._attacker.stdin is not None
        assert self._attacker.stdout is not None
        print(line, file=self._attacker.stdin, flush=True)
        answer = self._attacker.stdout.readline()
        if not answer:
            raise RuntimeError(f"the attacker ended with {self._attacker.wait()}")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _given_back(self) -> float:
        began = self.now()
        while (waited := self.now() - began) <= GIVEN_BACK_WAIT_S:
            with suppress(OSError):
                if self.held_bytes() <= BOOKS_SLACK_BYTES:
                    return waited
            time.sleep(BUSY_LOOK_S)
        return waited

    # -- the end

    def stop_under(self, case: Case) -> str | None:
        """SIGTERM while the case's connections are open and unread; what was wrong with the end, or None."""
        self.attack(case)
        began = time.monotonic()
        status = self.attacked.stop()
        seconds = time.monotonic() - began
        if status != 0 or seconds > STOP_S_MAX:
            return f"SIGTERM during {case}: ended with {status} after {seconds:.1f} s"
        return None

    def close(self) -> None:
        """End the attacker and leave."""
        self.client.close()
        for stream in (self._attacker.stdin, self._attacker.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self._attacker.kill()
        self._attacker.wait()


def _books(figures: dict[str, float]) -> int:
    """What the broker says it holds for clients; the tail cache is its own affair."""
    owners = {name: size for name, size in figures.items() if name.startswith("penstock_memory_used_bytes")}
    owners.pop('penstock_memory_used_bytes{owner="tail-cache"}', None)
    return int(sum(owners.values()))


def _row_bytes(case: Case, figures: dict[str, float]) -> int:
    if case.is_http:
        return int(figures.get('penstock_memory_budget_bytes{owner="http"}', 0))
    # Commands are requests that are read and answers that are not.
    requests = figures["MemoryPoolUsed"] + figures["MemoryPoolAvailable"]
    return int(max(requests, figures['penstock_memory_budget_bytes{owner="outbound"}']))


def _long_turns(figures: dict[str, float], ms: int) -> float:
    return figures[f'penstock_loop_long_turns_total{{longer_than_ms="{ms}"}}']


@contextmanager
def subject(
    scratch: Path, *, hard: bool = True, brokers: int = 1, proxied: bool = False, own_time: bool = False
) -> Iterator[Subject]:
    """A broker with authentication and TLS at memoryLimitMB=256; where we may, the kernel enforces exactly that.

    Each of several brokers has so much, beside their supervisor. With `proxied`, a proxy has it, and the broker behind
    it has no limit by the kernel. With `own_time`, no time counts in which the proxy waited for a processor.
    """
    with ExitStack() as stack:
        group = MemoryGroup.make() if hard else None
        if group is not None:
            stack.callback(group.remove)
        certificate = Certificate.make(scratch)
        tls_port = free_ports(brokers)
        limit_mb = MEMORY_LIMIT_MB if brokers == 1 else MEMORY_LIMIT_MB * brokers + SUPERVISOR_MB
        config = scratch / "abuse.conf"
        config.write_text(
            f"memoryLimitMB={limit_mb}\n"
            "authenticationEnabled=true\n"
            "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
            f"tokenSecretKey={data_url(SECRET)}\n"
            f"superUserRoles={ROLE},proxy\n"
            "proxyRoles=proxy\n"
            "authorizationEnabled=true\n"
            f"brokerShutdownTimeoutMs={int(STOP_S_MAX * 1000) - 1000}\n"
        )
        arguments = ["--config", str(config), "--tls-port", str(tls_port)]
        arguments += ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)]
        broker = Cluster(scratch / "data", brokers, arguments)
        proxy: ProxyProcess | None = None
        with nullcontext() if group is None or proxied else group.inside():
            broker.start()
        stack.enter_context(broker)
        if proxied:
            tls_port, settings = free_ports(1), scratch / "proxy.conf"
            groups = scratch / "groups.toml"
            groups.write_text(GROUPS)
            settings.write_text(
                f"memoryLimitMB={limit_mb}\nproxyDrainTimeoutMs={int(STOP_S_MAX * 1000) - 1000}\n"
                f"resourceGroupsFile={groups}\n{GOVERNED}"
            )
            arguments = ["--upstream-admin", broker.admin_url, "--config", str(settings), "--tls-port", str(tls_port)]
            arguments += ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)]
            proxy = ProxyProcess(broker.url, arguments, log_path=scratch / "proxy.log")
            if own_time:
                proxy.program = [own_time_program.__file__]
            with nullcontext() if group is None else group.inside():
                proxy.start()
            stack.enter_context(proxy)
        if group is not None:
            group.limit(limit_mb * MIB)
        now = time.monotonic
        if own_time and proxy is not None:
            clock = OwnTime(proxy.pid)
            stack.callback(clock.close)
            now = clock.monotonic
        attacked = Subject(broker, tls_port, certificate.certificate, group, proxy, now=now)
        stack.callback(attacked.close)
        attacked.begin()
        yield attacked

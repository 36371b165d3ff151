# SPDX-License-Identifier: Apache-2.0
"""Clients that work in transactions: each takes jobs from two topics, writes what comes of them to five, or gives up.

What they write down says which jobs a transaction took, when its end was asked for, and what was answered. Auditors
read the five topics all the time, and write down what they see, the first time. Where: `run` starts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import PenstockError, WireCode
from penstock.core.system_topics import COORDINATORS
from penstock.wire import codec
from penstock.wire.client import entries, events
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.producer import Producer
from tests.jepsen.clients import ANSWER_S, EARLIEST, PREFIX, RETRY_S, TYPES, Run, reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.position import Position
    from penstock.net.client import AsyncClient

JOBS: Final = ("jobs-0", "jobs-1")
RESULTS: Final = tuple(f"results-{number}" for number in range(5))
SUBSCRIPTION: Final = "work"
# So long a transaction may be open: whoever dies leaves one, and its jobs wait until then.
TIMEOUT_MS: Final = 4_000
ABORTED_SHARE: Final = 0.1
# How long a job is waited for, and how long an end is asked for again and again.
JOB_S: Final = 0.3
END_S: Final = 90.0
AUDIT_S: Final = 0.2
COMMIT, ABORT = 0, 1
# An end that is answered with one of these has another outcome, or none that is remembered.
OVER: Final = frozenset(
    {WireCode.TRANSACTION_NOT_FOUND, WireCode.INVALID_TXN_STATUS, WireCode.TRANSACTION_COORDINATOR_NOT_FOUND}
)


class Job(NamedTuple):
    """A message that was received, and the place in JOBS of its topic."""

    number: int
    ledger_id: int
    entry_id: int


class Transactor:
    """Does one transaction after the other, with a connection to each topic's broker and one to a coordinator's."""

    def __init__(self, run: Run, name: str, brokers: Callable[[], int], *, proxied: bool) -> None:
        """Args: brokers: returns how many there are."""
        self._run = run
        self._brokers = brokers
        self._name = name
        self._proxied = proxied
        self._count = 0
        self._coordinator = 0
        self._ids: dict[str, Any] = {}  # of the transaction in work, as fields of commands
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()

    async def work(self) -> None:
        """Work until the run has ended."""
        while not self._run.ending:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    await self._work(stack)
                except (OSError, PenstockError, TimeoutError):
                    await asyncio.sleep(RETRY_S)

    async def _work(self, stack: contextlib.AsyncExitStack) -> None:
        self._jobs = asyncio.Queue()
        listening = [await self._consume(stack, number) for number in range(len(JOBS))]
        producers = [await self._produce(stack, topic) for topic in RESULTS]
        coordinator = await self._coordinated(stack)
        while not self._run.ending and not any(task.done() for _, task in listening):
            jobs = await self._taken()
            if jobs:
                await self._transact(coordinator, [client for client, _ in listening], producers, jobs)

    async def _coordinated(self, stack: contextlib.AsyncExitStack) -> AsyncClient:
        """Connect to the coordinator of any broker that there is."""
        self._coordinator = self._run.chance.randrange(self._brokers())
        return await self._connected(stack, f"{COORDINATORS}-partition-{self._coordinator}")

    async def _connected(self, stack: contextlib.AsyncExitStack, topic: str) -> AsyncClient:
        client = await self._run.connect(topic, proxied=self._proxied)
        stack.callback(self._run.close, client)
        return client

    async def _produce(self, stack: contextlib.AsyncExitStack, topic: str) -> tuple[AsyncClient, Producer]:
        client = await self._connected(stack, topic)
        producer = Producer(1, PREFIX + topic)
        await client.open_producer(producer, timeout_s=ANSWER_S)
        return client, producer

    async def _consume(self, stack: contextlib.AsyncExitStack, number: int) -> tuple[AsyncClient, asyncio.Future[None]]:
        client = await self._connected(stack, JOBS[number])
        body = codec.CommandSubscribe(
            topic=PREFIX + JOBS[number],
            subscription=SUBSCRIPTION,
            subType=TYPES["shared"],  # type: ignore[arg-type]
            consumer_id=1,
            request_id=0,
            initialPosition=EARLIEST,  # type: ignore[arg-type]
        )
        await client.subscribe(Consumer(body, permits_max=4), timeout_s=ANSWER_S)
        listening = asyncio.ensure_future(self._listen(client, number))
        stack.callback(listening.cancel)
        return client, listening

    async def _listen(self, client: AsyncClient, number: int) -> None:
        with contextlib.suppress(OSError, PenstockError):
            while True:
                event = await client.next_event()
                if isinstance(event, events.ConsumerClosed):
                    return
                if isinstance(event, events.Message):
                    self._jobs.put_nowait(Job(number, event.position.ledger_id, event.position.entry_id))

    async def _taken(self) -> list[Job]:
        """One or two jobs; none if there is none."""
        jobs: list[Job] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOB_S):
                jobs.append(await self._jobs.get())
        if jobs and not self._jobs.empty():
            jobs.append(self._jobs.get_nowait())
        return jobs

    # -- one transaction

    async def _transact(
        self,
        coordinator: AsyncClient,
        consumers: list[AsyncClient],
        producers: list[tuple[AsyncClient, Producer]],
        jobs: list[Job],
    ) -> None:
        self._count += 1
        name = f"{self._name}-{self._count}"
        body: Any = await self._ask(
            coordinator, codec.CommandNewTxn(request_id=0, txn_ttl_seconds=TIMEOUT_MS, tc_id=self._coordinator)
        )
        self._ids = {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}
        told = [[JOBS[job.number], job.ledger_id, job.entry_id] for job in jobs]
        self._run.history.add("txn", name, "begun", told, list(self._ids.values()))
        adding = codec.CommandAddPartitionToTxn(request_id=0, **self._ids)
        adding.partitions.extend(PREFIX + topic for topic in RESULTS)
        subscribing = codec.CommandAddSubscriptionToTxn(request_id=0, **self._ids)
        for topic in {JOBS[job.number] for job in jobs}:
            subscribing.subscription.add(topic=PREFIX + topic, subscription=SUBSCRIPTION)
        await self._ask(coordinator, adding)
        await self._ask(coordinator, subscribing)
        await asyncio.gather(*(self._send(client, producer, name) for client, producer in producers))
        for job in jobs:
            acknowledging = codec.CommandAck(
                consumer_id=1,
                ack_type=codec.CommandAck.Individual,
                request_id=0,
                **self._ids,
            )
            acknowledging.message_id.add(ledgerId=job.ledger_id, entryId=job.entry_id)
            await self._ask(consumers[job.number], acknowledging)
        await self._end(coordinator, name, commit=self._run.chance.random() >= ABORTED_SHARE)

    @staticmethod
    async def _ask(client: AsyncClient, body: Any) -> Any:  # noqa: ANN401 - of the protocol
        return await client.request(body, timeout_s=ANSWER_S)

    async def _send(self, client: AsyncClient, producer: Producer, name: str) -> None:
        about = producer.metadata(int(time.time() * 1000))
        about.txnid_most_bits, about.txnid_least_bits = self._ids.values()
        made = producer.add(about, name.encode())
        command = codec.CommandSend(producer_id=1, sequence_id=made.sequence_id, **self._ids)
        sealed = entries.entry(about, name.encode())
        client.connection._out.append(entries.send(command, sealed))  # noqa: SLF001 - other clients have no transactions
        client.flush()
        async with asyncio.timeout(ANSWER_S):
            while True:
                event = await client.next_event()
                if isinstance(event, events.Receipt):
                    return
                if isinstance(event, events.SendFailed | events.ProducerClosed):
                    raise ConnectionResetError("it was not sent")

    async def _end(self, coordinator: AsyncClient, name: str, *, commit: bool) -> None:
        """Ask for the end until it is answered; whoever was not answered asks again, over another connection."""
        how = "commit" if commit else "abort"
        self._run.history.add("txn", name, how)
        deadline = time.monotonic() + END_S
        async with contextlib.AsyncExitStack() as stack:
            client: AsyncClient | None = coordinator
            while time.monotonic() < deadline and not self._run.ending:
                try:
                    client = client or await self._connected(stack, f"{COORDINATORS}-partition-{self._coordinator}")
                    await self._ask(
                        client,
                        codec.CommandEndTxn(request_id=0, **self._ids, txn_action=COMMIT if commit else ABORT),  # type: ignore[arg-type]
                    )
                except RequestRefused as error:
                    if error.code in OVER:
                        self._run.history.add("txn", name, "refused", error.code)
                        return
                    await asyncio.sleep(RETRY_S)
                except (OSError, PenstockError, TimeoutError):
                    client = None
                    await asyncio.sleep(RETRY_S)
                else:
                    self._run.history.add("txn", name, "ended", how)
                    return


class Auditor:
    """Reads one of the topics of results from its beginning on, again and again, as clients do that are cut off.

    If it `resumes`, it goes on where it ended: what it would read again is too much.
    """

    def __init__(self, run: Run, topic: str, *, resumes: bool = False) -> None:
        self._run = run
        self._topic = topic
        self._resumes = resumes
        self._next: Position | None = None
        self._seen: set[str] = set()

    async def work(self) -> None:
        """Read until the run has ended."""
        while not self._run.ending:
            try:
                for name, position in await read_results(self._run, self._topic, "auditor", self._next):
                    if self._resumes:
                        self._next = position._replace(entry_id=position.entry_id + 1)
                    if name not in self._seen:
                        self._seen.add(name)
                        self._run.history.add("seen", self._topic, name)
            except (OSError, PenstockError, TimeoutError):
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(AUDIT_S)


async def read_results(
    run: Run, topic: str, reader_name: str = "reader", start: Position | None = None
) -> list[tuple[str, Position]]:
    """Return the transactions that can be seen in a topic, as often as they can, with the places of their entries."""
    async with reader(run, topic, name=reader_name, start=start) as messages:
        return [(bytes(one.payload).decode(), one.position) async for one in messages]

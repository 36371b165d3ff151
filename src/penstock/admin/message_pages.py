# SPDX-License-Identifier: Apache-2.0
"""Pages of messages as JSON: decoded, masked, chosen and cut, from entries that the broker has read.

Why pages and no stream: a page that a browser does not ask for costs nothing. A live tail asks for the page behind the
last one; whoever is slow asks later, and whoever is away does not ask.
Why so many limits: an entry of a hundred bytes may hold a million messages when it is decompressed. A page ends where
one of them is reached, and says where to go on.
Where: `routes.message_pages`. Runs on a thread, not on a loop.
"""

from __future__ import annotations

import contextlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.admin.decoding import PAGE_CHARACTERS_MAX
from penstock.core.errors import UnsupportedVersion
from penstock.core.position import Position
from penstock.core.units import MIB
from penstock.wire import metadata
from penstock.wire.compression import DECOMPRESSED_BYTES_MAX
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import messages_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.admin.decoding import Decoder
    from penstock.broker.administration.message_admin import EntryPage, RawMessage
    from penstock.wire.masking import Mask
    from penstock.wire.messages import Message

Json: TypeAlias = "dict[str, Any]"

# Messages that one request looks at, whether they are chosen or not: a few hundredths of a second.
LOOKED_AT_MAX: Final = 10_000
# Bytes of stored entries that one request reads, and of the values in its answer; a larger message comes alone.
READ_BYTES_MAX: Final = MIB
ANSWER_BYTES_MAX: Final = MIB


class Wish(NamedTuple):
    """Contents of a page.

    Attributes:
        limit: of messages.
        tests: all of them hold for each message.
        mask: what is taken from messages, before the tests.
        value_bytes_max: of each value, and of the properties of each message; None: all of them.
        skip: messages of the first entry that an earlier page had.
        decoder: makes text of values, before masks and tests; None: they stay as they are.
    """

    limit: int
    tests: Sequence[Callable[[Message], bool]]
    mask: Mask
    value_bytes_max: int | None
    skip: int
    decoder: Decoder | None = None


def schema_versions(page: EntryPage) -> frozenset[bytes]:
    """Return the versions of the topic's schema that entries of a page name."""
    found = set()
    for one in page.entries:
        with contextlib.suppress(ProtocolError):
            found.add(metadata.decode(one.entry).schema_version)
    return frozenset(found)


def fitting(page: EntryPage) -> tuple[EntryPage, int]:
    """Return the first entries that may be decompressed together, and their bytes then; at least one."""
    sizes: list[int] = []
    total = 0
    for one in page.entries:
        size = _decompressed_bytes(one.entry)
        if sizes and total + size > DECOMPRESSED_BYTES_MAX:
            rest = page.entries[len(sizes)]
            return page._replace(entries=page.entries[: len(sizes)], next=_position(rest)), total
        sizes.append(size)
        total += size
    return page, total


def as_json(page: EntryPage, wish: Wish) -> Json:
    """Return the messages of a page that are chosen, and where the next one begins: `LEDGER:ENTRY[:INDEX]`."""
    rows: list[Json] = []
    looked_at = nbytes = 0
    unreadable = page.damaged
    for number, one in enumerate(page.entries):
        skip = wish.skip if number == 0 else 0
        try:
            for index, message in enumerate(messages_in(one.entry, _position(one))):
                if index < skip:
                    continue
                if len(rows) >= wish.limit or _is_enough(looked_at, nbytes, wish.decoder):
                    return _page(page, rows, looked_at, unreadable, _position(one), index)
                looked_at += 1
                read, schema = wish.decoder.decoded(message) if wish.decoder is not None else (message, {})
                seen = wish.mask.masked(read) if wish.mask else read
                if all(test(seen) for test in wish.tests):
                    row = _row(seen, len(message.value or b""), wish) | schema
                    nbytes += _row_bytes(row)
                    rows.append(row)
        except (ProtocolError, UnsupportedVersion):
            unreadable += 1
    return _page(page, rows, looked_at, unreadable, page.next, 0)


def _is_enough(looked_at: int, nbytes: int, decoder: Decoder | None) -> bool:
    """Whether a page ends here, whatever is wanted."""
    decoded = decoder is not None and decoder.spent >= PAGE_CHARACTERS_MAX
    return looked_at >= LOOKED_AT_MAX or nbytes >= ANSWER_BYTES_MAX or decoded


def _page(page: EntryPage, rows: list[Json], looked_at: int, unreadable: int, following: Position, index: int) -> Json:
    behind = page.last_entry_id + 1 - following.entry_id
    return {
        "messages": rows,
        "next": f"{following}:{index}" if index else str(following),
        "atEnd": behind <= 0,
        "behind": max(0, behind),
        "lookedAt": looked_at,
        "unreadable": unreadable,
    }


def _row(message: Message, value_bytes: int, wish: Wish) -> Json:
    row: Json = message.as_json()
    del row["topic"]
    cut = wish.value_bytes_max
    row |= {"producer": message.producer, "size": value_bytes, "encrypted": message.is_encrypted}
    if message.is_chunk:
        row["chunk"] = True
    if message.deliver_at_ms:
        row["deliverAt"] = message.deliver_at_ms
    if cut is None:
        return row
    if message.value is not None and len(message.value) > cut:
        row |= {"cut": True, **_first(message.value, cut, is_text="value" in row)}
    if message.key is not None and len(message.key) > cut:
        row |= {"keyBytes": len(message.key), "keyBase64" if message.key_is_base64 else "key": message.key[:cut]}
    total = sum(len(name) + len(value) for name, value in message.properties.items())
    if total > cut:
        row |= {"properties": _cut(message.properties.items(), cut), "propertiesBytes": total}
    return row


def _first(value: bytes, cut: int, *, is_text: bool) -> Json:
    first = value[:cut]
    # The last character may have been cut in the middle.
    return {"value": first.decode("utf-8", "ignore")} if is_text else {"valueBase64": b64encode(first).decode()}


def _cut(properties: Iterable[tuple[str, str]], left: int) -> dict[str, str]:
    """Return the first properties, as far as so many characters go; the last one may be cut."""
    kept = {}
    for name, value in properties:
        if left <= 0:
            break
        kept[name[:left]] = value[: max(0, left - len(name))]
        left -= len(name) + len(value)
    return kept


def _row_bytes(row: Json) -> int:
    texts = [row.get("value") or row.get("valueBase64") or "", row.get("key") or ""]
    return sum(map(len, texts)) + sum(len(name) + len(value) for name, value in row.get("properties", {}).items())


def _position(one: RawMessage) -> Position:
    return Position(one.ledger_id, one.entry_id)


def _decompressed_bytes(entry: bytes) -> int:
    try:
        said = metadata.decode(entry)
    except ProtocolError:
        return 0
    return max(len(entry), min(said.uncompressed_size, DECOMPRESSED_BYTES_MAX))

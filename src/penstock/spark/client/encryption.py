# SPDX-License-Identifier: Apache-2.0
"""End-to-end encryption as Pulsar's clients have it: only who has a private key reads the payload of an entry.

    payload                     nonce, 12 bytes, is in `encryption_param`; AES-GCM(compressed batch or message) | tag
    `encryption_keys`           the AES key, once for each public key, encrypted with it, by the name of that key

Metadata (keys, properties and times of entries) is not encrypted. Batches are encrypted whole, chunks one by one.

Why files: what a query is given are paths, never keys. Each process reads the files for itself; neither options, plans
and logs nor what is sent to tasks contain a key.
Where: `messages` decrypts what the reader receives, `producer` encrypts before it sends. Needs `cryptography`, which is
imported for the first entry.
Source: Java's `MessageCryptoBc`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.spark.client.deliveries import assembled
from penstock.spark.client.errors import EncryptedMessage, UnusableFile
from penstock.spark.client.fields import has, last_of, walk
from penstock.spark.client.message_id import MessageId
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.checksum import Buffer
    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.client.keys import DataKey, PrivateKey

FAIL: Final = "FAIL"
DISCARD: Final = "DISCARD"
CONSUME: Final = "CONSUME"
ACTIONS: Final = (FAIL, DISCARD, CONSUME)
PRIVATE_KEYS: Final = "cryptoKeyReader.privateKeys"
PUBLIC_KEYS: Final = "cryptoKeyReader.publicKeys"

_DATA_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
# Data keys that are remembered, so that not each entry costs an operation with a private key, about a millisecond. A
# producer has one, and changes it every four hours.
_DATA_KEYS_MAX: Final = 1_000
# MessageMetadata
_BATCH_MESSAGES, _ENCRYPTION = 11, 13
# What says how a payload is to be read, and is not true of one that stays encrypted.
_ABOUT_PAYLOAD: Final = (
    "compression", "uncompressed_size", "num_messages_in_batch", "uuid", "num_chunks_from_msg", "total_chunk_msg_size",
    "chunk_id",
)  # fmt: skip
_ABOUT_ENCRYPTION: Final = ("encryption_keys", "encryption_algo", "encryption_param")


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Where keys are: one file for all names, or one for each.

    Attributes:
        option: that named them, for the text of errors.
    """

    option: str
    for_all: str = ""
    by_name: tuple[tuple[str, str], ...] = ()

    @property
    def paths(self) -> list[str]:
        """All files."""
        return [path for path in (self.for_all, *dict(self.by_name).values()) if path]

    def path(self, name: str) -> str:
        """Return the file of a key; empty if there is none."""
        return dict(self.by_name).get(name, self.for_all)

    def read(self, name: str, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 -- as `parse` returns it
        """Return a key. Raises UnusableFile."""
        path = self.path(name)
        try:
            return parse(Path(path).read_bytes())
        except OSError as error:
            raise UnusableFile(self.option, path, error.strerror or str(error)) from None
        except ValueError as error:
            raise UnusableFile(self.option, path, str(error)) from None


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encryption:
    """Encrypts the entries of the producers of a task, with one data key; pickled, it is the names of keys."""

    names: tuple[str, ...]
    files: KeyFiles

    def __reduce__(self) -> tuple[type[Encryption], tuple[Any, ...]]:
        """Leave out the data key."""
        return Encryption, (self.names, self.files)

    def announce(self, metadata: MessageMetadata) -> None:
        """Add what others decrypt the data key from. Raises UnusableFile."""
        for name, key in self._made[1]:
            metadata.encryption_keys.add(key=name, value=key)

    def encrypted(self, metadata: MessageMetadata, payload: Buffer) -> bytes:
        """Encrypt a payload, and say in its metadata with which nonce. Raises UnusableFile."""
        metadata.encryption_param = secrets.token_bytes(_NONCE_BYTES)
        return self._made[0].encrypt(metadata.encryption_param, payload)

    @cached_property
    def _made(self) -> tuple[DataKey, list[tuple[str, bytes]]]:
        """A data key, and how it is said for each public key. It lasts for 2^32 entries with random nonces."""
        from penstock.spark.client import keys  # noqa: PLC0415 -- needs an extra

        data_key = secrets.token_bytes(_DATA_KEY_BYTES)
        public = {name: self.files.read(name, keys.public_key) for name in self.names}
        return keys.DataKey(data_key), [(name, keys.wrapped(key, data_key)) for name, key in public.items()]


# -- reading ----------------------------------------------------------------------------------------------------------


class _Undecryptable(Exception):
    """Why an entry cannot be decrypted; raised and caught here."""


@dataclass(frozen=True)
class Decryption:
    """Decrypts entries; pickled, it is the names of files.

    Attributes:
        files: of private keys; None: there are none.
        on_failure: the treatment of entries that cannot be decrypted.
    """

    files: KeyFiles | None = None
    on_failure: str = FAIL

    def __reduce__(self) -> tuple[type[Decryption], tuple[Any, ...]]:
        """Leave out keys."""
        return Decryption, (self.files, self.on_failure)

    @cached_property
    def discarded(self) -> Counter[str]:
        """Messages that were left out, by topic."""
        return Counter()

    @cached_property
    def _private(self) -> dict[str, PrivateKey]:
        return {}

    @cached_property
    def _ciphers(self) -> dict[tuple[str, bytes], DataKey | None]:
        return {}

    def decrypted(self, entries: Deliveries, topic: str) -> Deliveries:
        """Return the same entries without encryption: themselves, if none has any.

        With CONSUME, one that cannot be decrypted becomes a message of its encrypted bytes. With DISCARD it is left
        out, and counted.

        Raises:
            EncryptedMessage: an entry cannot be decrypted. UnusableFile: a key cannot be read.
        """
        said = walk(entries.data, entries.metadata_starts, entries.payload_starts, {_ENCRYPTION, _BATCH_MESSAGES})
        if _ENCRYPTION not in said:
            return entries
        count = len(entries)
        sizes = last_of(said.get(_BATCH_MESSAGES), count, 1)
        kept = np.ones(count, np.bool_)
        data = memoryview(entries.data)  # type: ignore[arg-type]  # arrays are buffers
        parts: list[memoryview | bytes] = []
        for row, is_encrypted in enumerate(has(said[_ENCRYPTION], count).tolist()):
            metadata: memoryview | bytes = data[entries.metadata_starts[row] : entries.payload_starts[row]]
            payload: memoryview | bytes = data[entries.payload_starts[row] : entries.payload_stops[row]]
            if is_encrypted:
                about = MessageMetadata.FromString(bytes(metadata))
                try:
                    payload = self._payload(about, payload)
                except _Undecryptable as error:
                    if self.on_failure == FAIL:
                        at = MessageId(int(entries.ledger_ids[row]), int(entries.entry_ids[row]))
                        raise EncryptedMessage(topic, str(at), about.producer_name, str(error)) from error
                    if self.on_failure == DISCARD:
                        kept[row] = False
                        self.discarded[topic] += int(sizes[row])
                        continue
                    _forget(about, _ABOUT_PAYLOAD)
                _forget(about, _ABOUT_ENCRYPTION)
                metadata = about.SerializeToString()
            parts += (metadata, payload)
        return assembled(entries, kept, parts)

    def _payload(self, about: MessageMetadata, payload: memoryview | bytes) -> bytes:
        """Decrypt a payload. Raises _Undecryptable, UnusableFile."""
        for said in about.encryption_keys:
            cipher = self._cipher(said.key, said.value)
            if cipher is None:
                continue
            try:
                return cipher.decrypt(about.encryption_param, payload)
            except ValueError:
                raise _Undecryptable(
                    f"its {len(payload)} bytes do not fit the key {said.key}: they are cut short or were changed"
                ) from None
        raise _Undecryptable(self._why_not([said.key for said in about.encryption_keys]))

    def _cipher(self, name: str, said: bytes) -> DataKey | None:
        """Return the data key that was encrypted for this name; None if it was for another key than we have."""
        if self.files is None or not self.files.path(name):
            return None
        if (name, said) not in self._ciphers:
            from penstock.spark.client import keys  # noqa: PLC0415 -- needs an extra

            path = self.files.path(name)
            if path not in self._private:
                self._private[path] = self.files.read(name, keys.private_key)
            if len(self._ciphers) >= _DATA_KEYS_MAX:
                self._ciphers.clear()
            try:
                self._ciphers[name, said] = keys.DataKey(keys.unwrapped(self._private[path], said))
            except ValueError:
                self._ciphers[name, said] = None
        return self._ciphers[name, said]

    def _why_not(self, names: Iterable[str]) -> str:
        wanted = ", ".join(names)
        if self.files is None:
            return f"it is for the keys {wanted}: give the option {PRIVATE_KEYS}"
        tried = [path for name in names if (path := self.files.path(name))]
        if not tried:
            return f"it is for the keys {wanted}, and {PRIVATE_KEYS} has {', '.join(dict(self.files.by_name))}"
        return f"it is for the keys {wanted}, which {' and '.join(dict.fromkeys(tried))} does not belong to"


def _forget(about: MessageMetadata, names: Iterable[str]) -> None:
    for name in names:
        about.ClearField(name)

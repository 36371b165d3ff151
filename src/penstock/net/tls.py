# SPDX-License-Identifier: Apache-2.0
"""TLS of a connection: an SSLObject between two memory BIOs that hold little.

Why not `ssl.SSLSocket`: it hides its unsent bytes, and an unfinished write must be repeated with the same bytes. Where:
a `Connection` of a TLS port has one, and calls it instead of its socket.

Memory: a memory BIO keeps the capacity of its fullest moment, so both are filled by one record at a time. So a
connection holds at most one record that is being read, one behind it, and one decrypted for peeking.
docs/internals/memory-ceiling.md has the measured figures.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock.core.errors import ConfigurationError
from penstock.core.units import KIB
from penstock.net.certificates import validity
from penstock.net.send_queue import Buffer, drop_sent, send_queued

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path


# ---------------------------------------------------------------------------------------------------------------------
# Creates the `ssl` context of a TLS port from Pulsar's configuration: protocols, ciphers and trusted certificates.

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# Java names ciphers as the RFCs do, OpenSSL has its own names: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is
# ECDHE-RSA-AES256-GCM-SHA384. The ciphers of TLS 1.3 have no key exchange in their names and are always enabled.
_JAVA_CIPHER: Final = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)")
_OF_TLS_13: Final = re.compile(r"TLS_(?:AES|CHACHA20)_(?!.*WITH)\w+")


# Until when the certificate of each context is valid, in ms since 1970: a context does not tell.
_VALID_UNTIL_MS: Final[WeakKeyDictionary[ssl.SSLContext, int]] = WeakKeyDictionary()


def valid_until_ms(context: ssl.SSLContext) -> int | None:
    """Return until when a context's own certificate is valid, in ms since 1970; None: it has none."""
    return _VALID_UNTIL_MS.get(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The configuration of all TLS ports."""

    certificate: Path
    key: Path
    trust: Path | None = None  # certificate authorities of clients' certificates
    require_client_certificate: bool = False
    allow_untrusted: bool = False
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context for a listener. Raises ConfigurationError, which names the setting and never a key's content."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, options.protocols)
    _set_ciphers(context, options.ciphers)
    try:
        _load(context, options.certificate, options.key)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"TLS certificate {options.certificate} with key {options.key} cannot be used: {error}"
        ) from error
    _set_trust(context, options)
    return context


def client_context(
    trust: Path | None, *, check_hostname: bool, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return a context for connections to brokers, whose certificates are verified. Raises ConfigurationError.

    Args:
        trust: certificate authorities in PEM; None: those of the system.
        check_hostname: whether a broker's certificate must have its host's name.
        certificate: shown to brokers; with its `key`.
        key: of the certificate.
    """
    try:
        context = ssl.create_default_context(cafile=trust)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"brokerClientTrustCertsFilePath={trust} cannot be used: {error}") from error
    context.check_hostname = check_hostname
    if certificate is not None:
        try:
            _load(context, certificate, key)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"brokerClientCertificateFilePath={certificate} with key {key} cannot be used: {error}"
            ) from error
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load a certificate, and note until when it is valid. Raises OSError, ssl.SSLError, ValueError."""
    context.load_cert_chain(certificate, key, password=_no_password)
    with contextlib.suppress(OSError, ValueError, IndexError):  # OpenSSL takes it; then it is not for us to refuse.
        _VALID_UNTIL_MS[context] = validity(certificate.read_text(encoding="ascii", errors="replace"))[1]


def _no_password() -> str:
    # Otherwise OpenSSL would ask on the terminal and wait.
    raise ValueError("the key is encrypted; penstock takes keys without a passphrase")


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    unknown = sorted(set(names) - _VERSIONS.keys())
    if unknown:
        raise ConfigurationError(f"tlsProtocols={','.join(unknown)} is not supported; want TLSv1.2 or TLSv1.3 or both")
    versions = [_VERSIONS[name] for name in names] or [ssl.TLSVersion.TLSv1_2]
    context.minimum_version = min(versions)
    if names:
        context.maximum_version = max(versions)


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    wanted = [_openssl_name(name) for name in names if _OF_TLS_13.fullmatch(name) is None]
    if not wanted:
        return
    try:
        context.set_ciphers(":".join(wanted))
    except ssl.SSLError as error:
        raise ConfigurationError(f"tlsCiphers={','.join(names)}: this system has none of them") from error


def _openssl_name(name: str) -> str:
    java = _JAVA_CIPHER.fullmatch(name)
    if java is None:
        return name
    cipher = re.sub(r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2", java["cipher"])
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    exchange = "" if java["exchange"] == "RSA" else f"{java['exchange']}-"
    return f"{exchange}{cipher}".replace("_", "-")


def _set_trust(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Request client certificates if there are trusted certificate authorities."""
    if options.trust is not None:
        try:
            context.load_verify_locations(options.trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"tlsTrustCertsFilePath={options.trust} cannot be used: {error}") from error
    if options.require_client_certificate:
        if options.trust is None:
            raise ConfigurationError(
                "tlsRequireTrustedClientCertOnConnect=true needs tlsTrustCertsFilePath: the certificates to trust"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    elif options.trust is not None and not options.allow_untrusted:
        context.verify_mode = ssl.CERT_OPTIONAL


# A TLS record holds at most 16 KiB of plaintext; on the wire it has at most 256 bytes more, and a header of five.
TLS_PLAIN_BYTES: Final = 16 * KIB
TLS_RECORD_BYTES: Final = TLS_PLAIN_BYTES + 256 + 5
# The bytes that are encrypted at a time, just before they are sent.
TLS_WRITE_BYTES: Final = 256 * KIB


class TlsLayer:
    """The TLS of one connection, from the handshake on."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, *, server_name: str | None = None) -> None:
        """Begin with the handshake; `server_name` is the host to reach, for the client's side."""
        self.established = False
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._ahead = memoryview(b"")  # decrypted for peeking, not yet received
        self._ended = False  # the client closed after bytes that were received
        self._ciphertext: deque[Buffer] = deque()  # encrypted, not yet taken by the socket
        self._plain_bytes = 0  # its length as plaintext, which counts as sent when all of it is

    def pending(self) -> bool:
        """Return whether something waits inside TLS: decrypted bytes, unread ciphertext, or the end of the stream."""
        return bool(self._ahead) or self._ended or self._ssl.pending() > 0 or self._incoming.pending > 0

    def certificate(self) -> Mapping[str, Any] | None:
        """Return the client's certificate as `ssl` describes it; None if it was not sent or not verified."""
        return self._ssl.getpeercert() or None

    def has_output(self) -> bool:
        """Return whether encrypted bytes wait for the socket."""
        return bool(self._ciphertext) or self._outgoing.pending > 0

    def handshake(self) -> None:
        """Do one step of the handshake; raises OSError (ssl.SSLError is one) on failure."""
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(TLS_RECORD_BYTES)
            if not data:
                raise ConnectionResetError
            self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
            self.established = True

    def peek(self, buffer: memoryview) -> int:
        """Like `receive` into one buffer of at most a record, but the bytes will be received again."""
        if len(self._ahead) < len(buffer):
            ahead, self._ahead = self._ahead, memoryview(b"")
            seen = len(ahead)
            buffer[:seen] = ahead
            try:
                seen += self.receive([buffer[seen:]])
            except BlockingIOError:
                if not seen:
                    raise
            self._ahead = memoryview(bytes(buffer[:seen]))
        nbytes = min(len(buffer), len(self._ahead))
        buffer[:nbytes] = self._ahead[:nbytes]
        return nbytes

    def receive(self, buffers: list[memoryview]) -> int:
        """Decrypt the bytes that have arrived into the buffers; 0 means that the client closed.

        Raises:
            BlockingIOError: nothing has arrived. Other OSErrors, ssl.SSLError among them: the connection is lost.
        """
        total = 0
        for buffer in buffers:
            filled = 0
            while filled < len(buffer):
                try:
                    count = self._take(buffer[filled:])
                except BlockingIOError:
                    if total == 0:
                        raise
                    return total
                if count == 0:
                    self._ended = True
                    return total
                filled += count
                total += count
        return total

    def _take(self, buffer: memoryview) -> int:
        """Return the length of the rest of a record, or of one more; 0 at the end of the stream."""
        if self._ahead:
            nbytes = min(len(buffer), len(self._ahead))
            buffer[:nbytes] = self._ahead[:nbytes]
            self._ahead = self._ahead[nbytes:]
            return nbytes
        while True:
            try:
                # With a buffer, `read` returns the number of bytes; the stubs only know the other form.
                return self._ssl.read(len(buffer), buffer)  # type: ignore[return-value]
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLWantReadError:
                # The BIO is empty now, so it never holds more than what is written here.
                data = self._sock.recv(TLS_RECORD_BYTES)
                if not data:
                    return 0
                self._incoming.write(data)

    def send(self, queue: deque[Buffer], step_bytes: int) -> int:
        """Encrypt and send one step of about `step_bytes`.

        Returns the number of plaintext bytes whose last byte of ciphertext the socket has taken.
        """
        if not self._ciphertext:
            self._collect()
            while self.established and queue and self._plain_bytes < step_bytes:
                self._plain_bytes += self._ssl.write(_take_record(queue))
                self._collect()
        if self._ciphertext:
            send_queued(self._sock, self._ciphertext)
        if self._ciphertext:
            return 0
        plain, self._plain_bytes = self._plain_bytes, 0
        return plain

    def _collect(self) -> None:
        if self._outgoing.pending:
            self._ciphertext.append(self._outgoing.read())


def _take_record(queue: deque[Buffer]) -> Buffer:
    """Remove the bytes of one TLS record from the queue.

    Small receipts share a record, because a record costs as much as ten.
    """
    record: Buffer = memoryview(queue[0])[:TLS_PLAIN_BYTES]
    if len(record) < TLS_PLAIN_BYTES and len(queue) > 1:
        joined = bytearray()
        for buffer in queue:
            joined += memoryview(buffer)[: TLS_PLAIN_BYTES - len(joined)]
            if len(joined) == TLS_PLAIN_BYTES:
                break
        record = joined
    drop_sent(queue, len(record))
    return record


def plain_reason(error: Exception) -> str:
    """Say in a few words why a socket failed."""
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset by the client"
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
            return "the client does not speak TLS; see brokerServicePort"
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__

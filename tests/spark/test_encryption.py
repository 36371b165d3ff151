# SPDX-License-Identifier: Apache-2.0
"""What the official clients encrypt is read with the private key, and they read what is encrypted here."""

from __future__ import annotations

import json
import logging
import pickle
import random
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from penstock.core.checksum import seal
from penstock.spark.client import keys as key_module
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.encryption import CONSUME, DISCARD, PRIVATE_KEYS, PUBLIC_KEYS, Decryption, Encryption
from penstock.spark.client.errors import EncryptedMessage, Refused, UnusableFile
from penstock.spark.client.producer import Producer, ProducerOptions
from penstock.spark.entries import Messages, batches, said_of
from penstock.spark.options import key_files, parse_read_options
from penstock.spark.source import PulsarDataSource
from penstock.spark.write_options import parse_write_options
from penstock.testing.client import RawClient, Type, send
from penstock.wire import compression
from penstock.wire.codec import MessageMetadata, SingleMessageMetadata
from tests.spark.numbered import endpoint_of
from tests.spark.test_client import publish, read_values
from tests.spark.topics import ask, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar
    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

TIMEOUT_MS = 10_000
NUMBERED = [b"%04d" % number for number in range(50)]
PEM = Encoding.PEM
NOTHING_SAID = SingleMessageMetadata(payload_size=0)


@dataclass(frozen=True)
class Pair:
    """Files of a public and a private key."""

    public: str
    private: str

    @property
    def reader(self) -> pulsar.CryptoKeyReader:
        """The same for the official client."""
        import pulsar

        return pulsar.CryptoKeyReader(self.public, self.private)

    @property
    def decryption(self) -> Decryption:
        return Decryption(key_files(PRIVATE_KEYS, self.private))

    def encryption(self, *names: str) -> Encryption:
        files = key_files(PUBLIC_KEYS, self.public)
        assert files is not None
        return Encryption(names, files)


def pair_of(directory: Path, name: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Pair:
    public, private = directory / f"{name}.pub.pem", directory / f"{name}.pem"
    public.write_bytes(key.public_key().public_bytes(PEM, PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Pair(str(public), str(private))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    directory = tmp_path_factory.mktemp("keys")
    made: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {
        "ours": rsa.generate_private_key(65537, 2048),
        "theirs": rsa.generate_private_key(65537, 2048),
        "curve": ec.generate_private_key(ec.SECP256R1()),
    }
    return {name: pair_of(directory, name, key) for name, key in made.items()}


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(endpoint_of(broker.url)) as cluster:
        yield cluster


def write_encrypted(
    cluster: Cluster, topic: str, encryption: Encryption, values: list[bytes], kind: int = compression.NONE
) -> None:
    options = ProducerOptions(compression=kind, encryption=encryption)
    messages = Messages(pa.array(values, pa.binary()))
    with Producer(cluster, topic, options=options) as producer:
        for batch in batches(messages, rows_max=10, bytes_max=1 << 20):
            producer.send_batch(batch.payload, batch.rows, batch.first_row, said_of(messages, batch.first_row))


# -- with the official client -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZSTD"])
@pytest.mark.parametrize("batched", [True, False])
def test_what_the_official_client_encrypts_is_read(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str, pairs: dict[str, Pair], codec: str,
    *, batched: bool,
) -> None:  # fmt: skip
    import pulsar

    client, ours = official(broker.url), pairs["ours"]
    options = {"compression_type": getattr(pulsar.CompressionType, codec), "batching_enabled": batched}
    publish(client, topic, NUMBERED[:20], encryption_key="k", crypto_key_reader=ours.reader, **options)
    publish(client, topic, NUMBERED[20:30], **options)
    publish(client, topic, NUMBERED[30:], encryption_key="k", crypto_key_reader=ours.reader, **options)
    assert read_values(cluster, topic, decryption=ours.decryption) == NUMBERED


@pytest.mark.parametrize("kind", [compression.NONE, compression.ZSTD])
def test_what_is_encrypted_here_is_read_by_the_official_client(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str, pairs: dict[str, Pair], kind: int
) -> None:
    ours = pairs["ours"]
    consumer = official(broker.url).subscribe(topic, "s", crypto_key_reader=ours.reader)
    write_encrypted(cluster, topic, ours.encryption("other", "k"), NUMBERED, kind)
    assert [consumer.receive(TIMEOUT_MS).data() for _ in NUMBERED] == NUMBERED
    entries = read_values(cluster, topic, decryption=Decryption(None, CONSUME))
    assert len(entries) == 5
    assert not any(value in (entry or b"") for entry in entries for value in NUMBERED)


def raw_entries(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    import pulsar

    reader = client.create_reader(
        topic, pulsar.MessageId.earliest, crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    return [reader.read_next(TIMEOUT_MS).data() for _ in range(count)]


@pytest.mark.parametrize("kind", [compression.NONE, compression.ZSTD])
def test_chunks_are_encrypted_one_by_one_both_ways(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str, pairs: dict[str, Pair], kind: int
) -> None:
    ours, large = pairs["ours"], random.Random(5).randbytes(11_000_000)
    client = official(broker.url)
    consumer = client.subscribe(topic, "s", crypto_key_reader=ours.reader)
    with Producer(
        cluster, topic, options=ProducerOptions(compression=kind, encryption=ours.encryption("k"))
    ) as producer:
        producer.send_single(large, NOTHING_SAID, 0)
    assert consumer.receive(TIMEOUT_MS).data() == large
    publish(
        client, topic, [large[:-1]], encryption_key="k", crypto_key_reader=ours.reader, chunking_enabled=True,
        batching_enabled=False,
    )  # fmt: skip
    assert read_values(cluster, topic, decryption=ours.decryption) == [large, large[:-1]]


def test_a_range_that_begins_behind_encrypted_chunks_finds_them(
    cluster: Cluster, topic: str, pairs: dict[str, Pair]
) -> None:
    """Also behind entries that cannot be decrypted: these are not in the range."""
    from tests.spark.numbered import end_of

    ours, large = pairs["ours"], random.Random(6).randbytes(11_000_000)
    write_encrypted(cluster, topic, pairs["theirs"].encryption("k"), NUMBERED)
    with Producer(cluster, topic, options=ProducerOptions(encryption=ours.encryption("k"))) as producer:
        producer.send_single(large, NOTHING_SAID, 0)
    end = end_of(cluster, topic)
    start = end._replace(entry_id=end.entry_id - 1)
    assert read_values(cluster, topic, start, decryption=ours.decryption) == [large]
    discarding = Decryption(ours.decryption.files, DISCARD)
    assert read_values(cluster, topic, start, decryption=discarding) == [large]
    assert not discarding.discarded


def test_a_namespace_that_requires_encryption_takes_what_is_encrypted_here(
    cluster: Cluster, broker: BrokerProcess, pairs: dict[str, Pair], topic: str
) -> None:
    namespace = f"public/n-{topic[-12:]}"
    ask(broker.admin_url, "PUT", f"namespaces/{namespace}", {"encryption_required": True})
    ask(broker.admin_url, "POST", f"namespaces/{namespace}/encryptionRequired", True)
    inside = f"persistent://{namespace}/t"
    with pytest.raises(Refused, match="ncrypt"):
        Producer(cluster, inside)
    write_encrypted(cluster, inside, pairs["ours"].encryption("k"), NUMBERED)
    assert read_values(cluster, inside, decryption=pairs["ours"].decryption) == NUMBERED


# -- what cannot be decrypted -----------------------------------------------------------------------------------------


@pytest.fixture
def mixed(cluster: Cluster, topic: str, pairs: dict[str, Pair]) -> str:
    """A topic with entries for a key `k` that is ours, one that is not, and without any."""
    write_encrypted(cluster, topic, pairs["ours"].encryption("k"), NUMBERED[:10])
    write_encrypted(cluster, topic, pairs["theirs"].encryption("k"), NUMBERED[10:20])
    with Producer(cluster, topic) as producer:
        producer.send_single(b"plain", NOTHING_SAID, 0)
    return topic


def test_without_keys_a_message_is_refused_with_the_option_to_give(cluster: Cluster, mixed: str) -> None:
    with pytest.raises(
        EncryptedMessage, match=r"for the keys k: give the option cryptoKeyReader\.privateKeys.*DISCARD"
    ):
        read_values(cluster, mixed)


def test_another_key_is_named_with_its_file(cluster: Cluster, mixed: str, pairs: dict[str, Pair]) -> None:
    ours = pairs["ours"]
    with pytest.raises(EncryptedMessage, match=rf"keys k, which {ours.private} does not belong to"):
        read_values(cluster, mixed, decryption=ours.decryption)


def test_a_key_without_a_file_is_named_with_those_that_have_one(
    cluster: Cluster, mixed: str, pairs: dict[str, Pair]
) -> None:
    files = key_files(PRIVATE_KEYS, json.dumps({"other": pairs["ours"].private}))
    with pytest.raises(EncryptedMessage, match=r"for the keys k, and cryptoKeyReader\.privateKeys has other"):
        read_values(cluster, mixed, decryption=Decryption(files))


def test_messages_that_cannot_be_decrypted_are_discarded_and_counted(
    cluster: Cluster, mixed: str, pairs: dict[str, Pair]
) -> None:
    decryption = Decryption(pairs["ours"].decryption.files, DISCARD)
    assert read_values(cluster, mixed, decryption=decryption) == [*NUMBERED[:10], b"plain"]
    assert decryption.discarded == {mixed: 10}


def test_an_entry_that_cannot_be_decrypted_is_consumed_as_the_official_client_does(
    cluster: Cluster, broker: BrokerProcess, official: Official, mixed: str, pairs: dict[str, Pair]
) -> None:
    found = read_values(cluster, mixed, decryption=Decryption(pairs["ours"].decryption.files, CONSUME))
    assert found == [*NUMBERED[:10], raw_entries(official(broker.url), mixed, 2)[1], b"plain"]


def test_a_payload_that_was_cut_short_is_refused(
    cluster: Cluster, broker: BrokerProcess, topic: str, pairs: dict[str, Pair]
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    encryption = pairs["ours"].encryption("k")
    encryption.announce(metadata)
    payload = encryption.encrypted(metadata, b"secret")[:-1]
    data = metadata.SerializeToString()
    with RawClient(broker.port) as raw:
        raw.produce(topic)
        raw.write(send(0, 0, seal(len(data).to_bytes(4, "big") + data + payload)))
        raw.next(Type.SEND_RECEIPT)
    with pytest.raises(EncryptedMessage, match="its 21 bytes do not fit the key k: they are cut short or were changed"):
        read_values(cluster, topic, decryption=pairs["ours"].decryption)


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ours", "curve"])
def test_a_data_key_is_unwrapped_by_its_own_key_only(pairs: dict[str, Pair], name: str, tmp_path: Path) -> None:
    from pathlib import Path

    pair, data_key = pairs[name], random.Random(1).randbytes(32)
    said = key_module.wrapped(key_module.public_key(Path(pair.public).read_bytes()), data_key)
    private = key_module.private_key(Path(pair.private).read_bytes())
    assert key_module.unwrapped(private, said) == data_key
    other = pair_of(tmp_path, "x", ec.generate_private_key(ec.SECP256R1()) if name == "curve" else rsa_key())
    with pytest.raises(ValueError, match=r"\w"):
        key_module.unwrapped(key_module.private_key(Path(other.private).read_bytes()), said)
    for damaged in (said[:-1], b"", bytes(len(said))):
        with pytest.raises(ValueError, match=r"\w"):
            key_module.unwrapped(private, damaged)


# What Java's client 4.2.4 made of the message `v0` and the public key that belongs to this one.
JAVAS_KEY = b"""-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgLZ8yFqWfB/zDFmCm
DbtlfhBCaLxIFamjJzj7i4IZ5HOhRANCAASk+I2ZHMyGU5HtvpKOhXKfOuoF9NHQ
zitUaxHo/AZ04uzeM3ir9qfAC1zY26a2gTNbSZgTWOm3Rk5QoMj3Vpzc
-----END PRIVATE KEY-----
"""
JAVAS_DATA_KEY = (
    "BC7moA+E37mHXuBTrlmVgfFLSJBNcarICsUG4GOU0jK0nQt0HH9ow8xKOP5k7A+H2fzaaXX1sOe4pfUNyF6Gz/7hZkXpA9N1C+eQmojq44/IGjsUJX6a"
    "ckzbCqWunuP76FG6bB9NYxDbH2zSxO26aeRzkPFt"
)


def test_what_java_encrypts_with_a_curve_is_read() -> None:
    data_key = key_module.unwrapped(key_module.private_key(JAVAS_KEY), b64decode(JAVAS_DATA_KEY))
    nonce, payload = b64decode("w+KmeaR85g8Kqlgu"), b64decode("H3XknL0/e+KCbVK5eOLsYItC")
    assert key_module.DataKey(data_key).decrypt(nonce, payload) == b"v0"


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def test_a_file_may_hold_the_parameters_of_a_curve_before_its_key(pairs: dict[str, Pair], tmp_path: Path) -> None:
    from pathlib import Path

    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    key_module.private_key(parameters + Path(pairs["curve"].private).read_bytes())


def test_files_that_are_no_keys_are_named(pairs: dict[str, Pair], cluster: Cluster, mixed: str, tmp_path: Path) -> None:
    locked, strange, none = tmp_path / "locked.pem", tmp_path / "strange.pem", tmp_path / "none.pem"
    locked.write_bytes(rsa_key().private_bytes(PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"p")))
    strange.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PrivateFormat.PKCS8, NoEncryption()))
    none.write_bytes(b"no key")
    for file, why in ((locked, "without a password"), (strange, "of RSA or"), (none, "in PEM")):
        with pytest.raises(UnusableFile, match=rf"{PRIVATE_KEYS}: {file} cannot be used: want a private key.*{why}"):
            read_values(cluster, mixed, decryption=Decryption(key_files(PRIVATE_KEYS, str(file))))
    gone = key_files(PRIVATE_KEYS, str(none))
    none.unlink()
    with pytest.raises(UnusableFile, match="No such file"):
        read_values(cluster, mixed, decryption=Decryption(gone))


# -- options ----------------------------------------------------------------------------------------------------------


def reading(**options: str) -> Any:  # noqa: ANN401
    return parse_read_options(
        {
            "service.url": "pulsar://b:1",
            "topic": "t",
            **{name.replace("__", "."): said for name, said in options.items()},
        }
    )


def writing(**options: str) -> Any:  # noqa: ANN401
    return parse_write_options(
        {
            "service.url": "pulsar://b:1",
            "topic": "t",
            **{name.replace("__", "."): said for name, said in options.items()},
        }
    )


def test_settings_that_are_sent_to_tasks_hold_no_key(pairs: dict[str, Pair]) -> None:
    from pathlib import Path

    ours = pairs["ours"]
    read = reading(cryptoKeyReader__privateKeys=f"file://{ours.private}", cryptoFailureAction="discard").reading
    written = writing(encryptionKeys="k, l", cryptoKeyReader__publicKeys=ours.public).sending.producer.encryption
    assert read.decryption == Decryption(key_files(PRIVATE_KEYS, ours.private), DISCARD)
    assert written == ours.encryption("k", "l")
    metadata = MessageMetadata()
    written.announce(metadata)
    payload = written.encrypted(metadata, b"x")
    assert read.decryption._cipher("k", metadata.encryption_keys[0].value).decrypt(  # noqa: SLF001
        metadata.encryption_param, payload
    ) == b"x"  # fmt: skip
    for settings in (read.decryption, written):
        assert len(pickle.dumps(settings)) < 500
        assert pickle.loads(pickle.dumps(settings)).__dict__.keys() <= {"files", "on_failure", "names"}
    secret = Path(ours.private).read_text(encoding="ascii")
    with pytest.raises(ValueError, match=f"{PRIVATE_KEYS} is a key; give the name of its file") as refused:
        reading(cryptoKeyReader__privateKeys=secret)
    assert secret[40:80] not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"encryptionKeys": "k"}, "belong together"),
        ({"cryptoKeyReader__publicKeys": "{public}"}, "belong together"),
        ({"encryptionKeys": "k", "cryptoKeyReader__publicKeys": "/nowhere.pem"}, "there is no file /nowhere.pem"),
        ({"encryptionKeys": "k", "cryptoKeyReader__publicKeys": '{"l": "{public}"}'}, "has no file for the key k"),
        ({"encryptionKeys": "k", "cryptoKeyReader__publicKeys": "{"}, "does not read as JSON"),
        ({"cryptoFailureAction": "SEND"}, "there is no option 'cryptoFailureAction' for writing"),
    ],
)
def test_options_of_a_write_that_cannot_be_are_refused(
    options: dict[str, str], why: str, pairs: dict[str, Pair]
) -> None:
    with pytest.raises(ValueError, match=why):
        writing(**{name: said.replace("{public}", pairs["ours"].public) for name, said in options.items()})


def test_a_private_key_does_not_encrypt(pairs: dict[str, Pair]) -> None:
    with pytest.raises(UnusableFile, match="want a public key in PEM"):
        writing(encryptionKeys="k", cryptoKeyReader__publicKeys=pairs["ours"].private)


def test_a_task_says_how_many_messages_it_discarded(
    broker: BrokerProcess, mixed: str, pairs: dict[str, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "service.url": broker.url,
        "topic": mixed,
        "cryptoKeyReader.privateKeys": pairs["ours"].private,
        "cryptoFailureAction": "DISCARD",
        "columns": "value",
    }
    source = PulsarDataSource(options)
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    with caplog.at_level(logging.WARNING):
        found = [
            row for task in reader.partitions() for batch in reader.read(task) for row in batch.column(0).to_pylist()
        ]
    assert found == [*NUMBERED[:10], b"plain"]
    assert f"{mixed}: 10 messages were discarded, because they cannot be decrypted" in caplog.text


def test_small_partitions_that_are_read_together_are_decrypted(
    cluster: Cluster, broker: BrokerProcess, partitioned: str, pairs: dict[str, Pair]
) -> None:
    for number, partition in enumerate(cluster.partitions(partitioned)):
        write_encrypted(cluster, partition, pairs["ours"].encryption("k"), NUMBERED[number * 10 : number * 10 + 10])
    options = {
        "service.url": broker.url,
        "topic": partitioned,
        "cryptoKeyReader.privateKeys": pairs["ours"].private,
        "columns": "value",
    }
    source = PulsarDataSource(options)
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    found = [value for batch in reader.read(task) for value in batch.column(0).to_pylist()]
    assert found == NUMBERED[:40]


# -- with Spark -------------------------------------------------------------------------------------------------------


def test_spark_writes_encrypted_rows_and_reads_them(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, pairs: dict[str, Pair]
) -> None:
    from pathlib import Path

    ours = pairs["ours"]
    rows = spark.createDataFrame([(f"{number:04}",) for number in range(50)], "value string").coalesce(1)
    write(rows, broker, topic=topic, encryptionKeys="k", cryptoKeyReader__publicKeys=ours.public)
    consumer = official(broker.url).subscribe(topic, "s", initial_position=earliest(), crypto_key_reader=ours.reader)
    assert [consumer.receive(TIMEOUT_MS).data() for _ in NUMBERED] == NUMBERED
    frame = (
        spark.read.format("pulsar")
        .option("service.url", broker.url)
        .option("topic", topic)
        .option("cryptoKeyReader.privateKeys", ours.private)
        .load()
    )
    assert sorted(bytes(row.value) for row in frame.collect()) == NUMBERED
    plan = frame._jdf.queryExecution().toString()  # noqa: SLF001 -- what `explain` prints
    key = Path(ours.private).read_text(encoding="ascii").splitlines()[1]
    assert key not in plan


def earliest() -> pulsar.InitialPosition:
    import pulsar

    return pulsar.InitialPosition.Earliest

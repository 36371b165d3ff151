# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the admin port, as JSON: names and types as Pulsar's admin clients spell them.

Where: routes name these models; `/openapi.json` shows them. Members that nobody here knows are ignored on the way in.
Policies are in `models_policies`, statistics in `models_stats`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic_core import PydanticCustomError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


def _number(value: object) -> object:
    """Return a value that is not of another type of JSON than a number.

    Pydantic would take `true` for 1 and "7" for 7: a script with its members in the wrong order would set wrong limits.
    A number without a fraction may be written 7.0, because JSON has one type of numbers.
    """
    if isinstance(value, bool | str):
        what = "true or false" if isinstance(value, bool) else "a text"
        raise PydanticCustomError("number", "want a number, not {what}", {"what": what})
    return value


# Java's numbers: what is beyond them no client can have meant. In a query, all is text.
IntInQuery: TypeAlias = Annotated[int, Field(ge=-INT_MAX - 1, le=INT_MAX)]
Int: TypeAlias = Annotated[IntInQuery, BeforeValidator(_number)]
Long: TypeAlias = Annotated[int, Field(ge=-LONG_MAX - 1, le=LONG_MAX), BeforeValidator(_number)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=LONG_MAX), BeforeValidator(_number)]
Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_number)]
Flag: TypeAlias = StrictBool
Properties: TypeAlias = dict[str, str]
AuthAction: TypeAlias = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]


class Model(BaseModel):
    """A JSON object of which unknown members are ignored."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    def given(self) -> dict[str, object]:
        """Return members that were given, under their JSON names."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Reason(BaseModel):
    """Why a request was not carried out."""

    reason: str


class Healthy(BaseModel):
    """The broker can do its work. Notes are of what will need somebody soon: a certificate or a token that expires."""

    status: Literal["ok"] = "ok"
    notes: list[str] = []


class Degraded(BaseModel):
    """The broker serves, but not everything that it stored: what it cannot read."""

    status: Literal["degraded"] = "degraded"
    problems: list[str]
    notes: list[str] = []


class Failing(BaseModel):
    """The broker cannot do its work, and why."""

    status: Literal["failing"] = "failing"
    reason: str


Status: TypeAlias = Literal["ok", "degraded", "failing"]


class Front(BaseModel):
    """The root of the admin port: which program, in which state, and its pages."""

    name: Literal["penstock"] = "penstock"
    version: str
    status: Status
    links: dict[str, str] = {
        "health": "/healthz",
        "metrics": "/metrics",
        "routes": "/openapi.json",
        "tenants": "/admin/v2/tenants",
    }


class ClusterData(Model):
    """Where a cluster is reached."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    service_url: str | None = Field(None, alias="serviceUrl")
    service_url_tls: str | None = Field(None, alias="serviceUrlTls")
    broker_service_url: str | None = Field(None, alias="brokerServiceUrl")
    broker_service_url_tls: str | None = Field(None, alias="brokerServiceUrlTls")
    proxy_service_url: str | None = Field(None, alias="proxyServiceUrl")
    authentication_plugin: str | None = Field(None, alias="authenticationPlugin")
    authentication_parameters: str | None = Field(None, alias="authenticationParameters")
    proxy_protocol: Literal["SNI"] | None = Field(None, alias="proxyProtocol")
    peer_cluster_names: list[str] | None = Field(None, alias="peerClusterNames")
    listener_name: str | None = Field(None, alias="listenerName")
    broker_client_tls_enabled: Flag | None = Field(None, alias="brokerClientTlsEnabled")
    tls_allow_insecure_connection: Flag | None = Field(None, alias="tlsAllowInsecureConnection")
    trust_certs_file: str | None = Field(None, alias="brokerClientTrustCertsFilePath")
    certificate_file: str | None = Field(None, alias="brokerClientCertificateFilePath")
    key_file: str | None = Field(None, alias="brokerClientKeyFilePath")


class ClusterUrl(Model):
    """Where the cluster is reached to which clients move."""

    service_url: str | None = Field(None, alias="serviceUrl")
    service_url_tls: str | None = Field(None, alias="serviceUrlTls")
    broker_service_url: str | None = Field(None, alias="brokerServiceUrl")
    broker_service_url_tls: str | None = Field(None, alias="brokerServiceUrlTls")


class ClusterMigration(Model):
    """Whether all clients of a cluster move, and where those go who do."""

    migrated: Flag = False
    migrated_cluster_url: ClusterUrl | None = Field(None, alias="migratedClusterUrl")


class NamespaceMigration(Model):
    """Whether the clients of a namespace move to another cluster, and whether they wait for it."""

    migrated: Flag
    moved: Flag  # subscriptions were carried over: consumers go with a backlog, too
    held_for_ms: Count = Field(alias="heldForMs")  # 0: they do not wait


class TenantInfo(Model):
    """A tenant: its administrators, and the clusters where its namespaces may live."""

    admin_roles: list[str] | None = Field(None, alias="adminRoles")
    allowed_clusters: list[str] | None = Field(None, alias="allowedClusters")


class Finding(Model):
    """One hold: what slows a producer or a subscription now."""

    what: str
    limit: str
    reason: str
    # slows; waits, as its clients have asked; or would-refuse: nobody is slowed, but a new client would be refused
    effect: str = "slows"
    for_ms: Long | None = Field(None, alias="forMs")
    numbers: dict[str, Number] = {}
    lifted_by: str = Field(alias="liftedBy")
    # Whose limit it is, if it is not one of whoever is slowed, or the broker's. Those who do not administer one of them
    # are not told more than that there is such a limit.
    tenants: list[str] | None = None


class Explanation(Model):
    """Findings about things that slow something; without findings nothing does."""

    of: str
    slowed: bool
    producers: Count
    subscriptions: Count
    findings: list[Finding]
    more: bool  # whether findings are left out, and the rest was not looked at
    unanswered: list[Count] = []  # numbers of brokers that did not answer


def _rate(name: str, *others: str) -> Any:  # noqa: ANN401 - as `Field`
    return Field(None, validation_alias=AliasChoices(name, *others), serialization_alias=name)


class ResourceGroup(Model):
    """Limits of publishing and receiving of all namespaces and tenants of a group, per second; -1: no limit."""

    publish_messages: Int | None = _rate("publishRateInMsgs", "publishRateInmsgs")
    publish_bytes: Long | None = _rate("publishRateInBytes", "PublishRateInbytes")
    dispatch_messages: Int | None = _rate("dispatchRateInMsgs", "DispatchRateInmsgs")
    dispatch_bytes: Long | None = _rate("dispatchRateInBytes", "DispatchRateInbytes")


class ObservedClass(Model):
    """Effect of one broker's share of an observed quota, if it had been in force, since it is observed.

    `limitedMs`: for how long something would have waited; `limitedInForceMs`: for how long something did, for the
    quota in force. Shares per second; -1: no limit.
    """

    share_messages: float = Field(alias="shareInMsgs")
    share_bytes: float = Field(alias="shareInBytes")
    observed_ms: Long = Field(alias="observedMs")
    limited_ms: Long = Field(alias="limitedMs")
    limited_in_force_ms: Long = Field(alias="limitedInForceMs")
    arrived_messages: Long = Field(alias="arrivedMessages")
    arrived_bytes: Long = Field(alias="arrivedBytes")


class ObservedQuota(Model):
    """Effect of an observed quota of a resource group on one broker, if it had been in force; null: not observed."""

    publish: ObservedClass | None = None
    dispatch: ObservedClass | None = None


class ResourceGroupOfSeed(Model):
    """The same with the names of PIP-82."""

    publish_messages: Int | None = _rate("PublishRatelimitinmsgs", "publishRateInMsgs")
    publish_bytes: Long | None = _rate("PublishRatelimitinbytes", "publishRateInBytes")
    dispatch_messages: Int | None = _rate("DispatchRatelimitinmsgs", "dispatchRateInMsgs")
    dispatch_bytes: Long | None = _rate("DispatchRatelimitinbytes", "dispatchRateInBytes")


class Bundles(Model):
    """How a namespace's topics are divided by the hash of their names. A broker serves all of them."""

    boundaries: list[str] = []
    num_bundles: Int = Field(alias="numBundles")


class MessageId(Model):
    """Where a message is."""

    ledger_id: Long = Field(-1, alias="ledgerId")
    entry_id: Long = Field(-1, alias="entryId")
    partition_index: Int = Field(-1, alias="partitionIndex")


class BatchMessageId(MessageId):
    """The same, and the place inside a batch."""

    batch_index: Int = Field(-1, alias="batchIndex")


class ResetPosition(BatchMessageId):
    """A position to reset or create a subscription at."""

    # Pulsar's JSON leaves the "is" out, whatever its documentation says; those who believe it are understood, too.
    is_excluded: Flag = Field(False, validation_alias=AliasChoices("excluded", "isExcluded"))
    properties: Properties | None = None


class PartitionedMetadata(Model):
    """How many partitions a topic has; 0: it is none."""

    partitions: Int
    deleted: Flag = False
    properties: Properties | None = None


class PartitionedRequest(Model):
    """A partitioned topic to create."""

    partitions: Int
    properties: Properties | None = None


class CompactionStatus(Model):
    """State of the last compaction of a topic."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    last_error: str = Field("", alias="lastError")


class LookupData(Model):
    """Where a topic is served."""

    broker_url: str | None = Field(None, alias="brokerUrl")
    broker_url_tls: str | None = Field(None, alias="brokerUrlTls")
    http_url: str | None = Field(None, alias="httpUrl")
    http_url_tls: str | None = Field(None, alias="httpUrlTls")
    native_url: str | None = Field(None, alias="nativeUrl")
    # What brokerUrlTls was called once. The C++ client and those built on it crash when they find neither.
    broker_url_ssl: str = Field("", alias="brokerUrlSsl")

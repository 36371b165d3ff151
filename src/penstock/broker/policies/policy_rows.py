# SPDX-License-Identifier: Apache-2.0
"""What a row of the table of policies is, and how what is stored of it is read.

Where: `policy_table` declares rows with `row`; `policies` reads and stores values through them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.policies.shapes import Json, Shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Level:
    """Where a policy stands for namespaces, or for topics."""

    key: str  # in the JSON that is stored
    path: str = ""  # the last part of its path on the admin port, where that is not the policy's name
    verb: str = "POST"  # what sets it there
    removable: bool = True
    unset: Json = None  # what GET answers while nothing is set; None: 204
    routed: bool = True  # whether its routes follow from the row; otherwise they are written by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A policy as it is stored and shown; one that is only that means nothing here and is kept as it is set."""

    name: str  # the last part of its path on the admin port
    namespace: Level | None = None  # None: only topics have it
    topic: Level | None = None  # None: only namespaces have it
    shape: Shape
    example: Json  # a value that differs from the default, for the documentation and the tests
    nothing: Json = None  # how a namespace's JSON says that nothing is set
    per_cluster: bool = False  # whether a namespace's JSON has it in a map by the cluster's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Stored, Generic[T]):
    """One row: what a policy is called, what it may say, what holds when nobody says so, and what it means."""

    text: str
    default: Callable[[PolicyDefaults], Json]
    read: Callable[[Json], T]  # the attribute of EffectivePolicies
    merged: bool = False  # a map of which each level sets some
    # A key of the namespace's JSON, and what its values mean, that counts where this policy is not set.
    older: tuple[str, Mapping[str, str]] | None = None

    def says(self, value: Json) -> bool:
        """Whether the value sets anything in a namespace, where Pulsar's JSON has some values for "not set"."""
        return value is not None and value != self.nothing

    def says_of_topic(self, value: Json) -> bool:
        """Whether it sets anything in a topic, which can say no where its namespace says yes."""
        return value is False or self.says(value)

    def checked(self, value: Json) -> Json:
        """The value as it is to be stored. Raises PreconditionFailed."""
        try:
            return self.shape.check(value)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None

    def sound(self, value: Json) -> Json:
        """A stored value with every member, or None if it is nothing that can be."""
        try:
            return self.shape.check(value)
        except ValueError:
            return None  # Whoever stored it knew another version of this policy.

    def in_topic(self, policies: Mapping[str, Json]) -> Json:
        """What a topic's JSON says of this policy; None when it says nothing."""
        value = policies.get(self.topic.key) if self.topic is not None else None
        return self.sound(value) if self.says_of_topic(value) else None

    def in_namespace(self, policies: Mapping[str, Json], cluster: str) -> Json:
        """What a namespace's JSON says of this policy; None when it says nothing."""
        value = policies.get(self.namespace.key) if self.namespace is not None else None
        if value is not None and self.per_cluster:
            value = value.get(cluster)
        if self.older is not None and not self.says(value):
            key, names = self.older
            value = names.get(policies.get(key) or "")
        return self.sound(value) if self.says(value) else None

    def applied(
        self, *, topic: Mapping[str, Json], namespace: Mapping[str, Json], defaults: PolicyDefaults, cluster: str
    ) -> Json:
        """The value in force, in the shape of the admin port."""
        of_topic, of_namespace = self.in_topic(topic), self.in_namespace(namespace, cluster)
        if self.merged:
            return {**self.default(defaults), **(of_namespace or {}), **(of_topic or {})}
        if of_topic is not None:
            return of_topic
        return of_namespace if of_namespace is not None else self.default(defaults)


def row(policy: Policy[T]) -> T:
    """Declare an attribute of EffectivePolicies as a policy; its default is what the default configuration says."""
    value = policy.read(policy.default(PolicyDefaults()))
    declared: T = field(default_factory=lambda: value, metadata={"policy": policy})
    return declared

# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of policies: what a row consists of, and how stored JSON is read through it.

Where: `policy_table` declares rows with `Policy.row`; `policies` reads and stores values through them.
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
    """The key and routes of a policy at one level: namespaces or topics."""

    key: str  # in the stored JSON
    path: str = ""  # last part of its admin path, if not the policy's name
    verb: str = "POST"  # HTTP method that sets it
    removable: bool = True
    unset: Json = None  # answer to GET while nothing is set; None: 204
    routed: bool = True  # whether its routes are derived; else they are written by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A policy as it is stored and shown. One that is not a `Policy` has no effect here."""

    name: str  # the last part of its admin path
    namespace: Level | None = None  # None: only topics have it
    topic: Level | None = None  # None: only namespaces have it
    shape: Shape
    example: Json  # a value that differs from the default, for the documentation and the tests
    nothing: Json = None  # the value in a namespace's JSON that means not set
    per_cluster: bool = False  # stored by cluster name in a namespace's JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Stored, Generic[T]):
    """One row of the table: a policy with its default and the reader of its value."""

    text: str
    default: Callable[[PolicyDefaults], Json]
    read: Callable[[Json], T]  # makes the attribute of EffectivePolicies
    merged: bool = False  # a map whose keys are merged over the levels
    # A key of the namespace's JSON that applies where this policy is not set, and a translation of its values.
    older: tuple[str, Mapping[str, str]] | None = None

    def says(self, value: Json) -> bool:
        """Whether a namespace's value sets the policy. Some values in Pulsar's JSON mean "not set"."""
        return value is not None and value != self.nothing

    def says_of_topic(self, value: Json) -> bool:
        """Whether a topic's value sets the policy. A topic may override True with False."""
        return value is False or self.says(value)

    def checked(self, value: Json) -> Json:
        """Check a value and return it as it is stored. Raises PreconditionFailed."""
        try:
            return self.shape.check(value)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None

    def sound(self, value: Json) -> Json:
        """A stored value with all its members, or None if it is invalid."""
        try:
            return self.shape.check(value)
        except ValueError:
            return None  # stored by another version of penstock, or by Pulsar

    def in_topic(self, policies: Mapping[str, Json]) -> Json:
        """The value set in a topic's JSON, or None."""
        value = policies.get(self.topic.key) if self.topic is not None else None
        return self.sound(value) if self.says_of_topic(value) else None

    def in_namespace(self, policies: Mapping[str, Json], cluster: str) -> Json:
        """The value set in a namespace's JSON, or None."""
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
        """The value in force, in the admin API's shape."""
        of_topic, of_namespace = self.in_topic(topic), self.in_namespace(namespace, cluster)
        if self.merged:
            return {**self.default(defaults), **(of_namespace or {}), **(of_topic or {})}
        if of_topic is not None:
            return of_topic
        return of_namespace if of_namespace is not None else self.default(defaults)

    def row(self) -> T:
        """Declare a field of EffectivePolicies, with its value under default settings."""
        value = self.read(self.default(PolicyDefaults()))
        declared: T = field(default_factory=lambda: value, metadata={"policy": self})
        return declared

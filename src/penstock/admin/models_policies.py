# SPDX-License-Identifier: Apache-2.0
"""Policies as the admin port takes and gives them: models made of the shapes in the broker's table of policies.

Why made: the table says once what a value may be. What is named here can be used as a type in the routes; the type
checker knows it as a `Model`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, create_model

from penstock.admin.models import AuthAction, Bundles, Int, Long, Model, Number, Properties
from penstock.admin.models import Flag as Switch
from penstock.broker.policies.policy_parts import BACKLOG_QUOTA, DISPATCH_RATE
from penstock.broker.policies.policy_table import POLICIES
from penstock.broker.policies.shapes import Each, Flag, Object, Whole, Word, Words
from penstock.broker.policies.unenforced_policies import ALL

if TYPE_CHECKING:
    from penstock.broker.policies.shapes import Member, Shape


@cache
def model(shape: Shape) -> Any:  # noqa: ANN401 -- a type, made here
    """The type of a shape's values."""
    match shape:
        case Whole():
            return Long if shape.long else Int
        case Flag():
            return Switch
        case Word():
            return _words(shape.allowed)
        case Words():
            return _of(list, _words(shape.allowed))
        case Object():
            return _object(shape)
        case Each():
            each: dict[str, Any] = dict.fromkeys(shape.allowed, (model(shape.shape) | None, None))
            return create_model(_title(shape.what), __base__=Model, **each)
    raise AssertionError(f"the admin port has no type for {shape}")


def _of(generic: Any, *arguments: Any) -> Any:  # noqa: ANN401
    return generic[arguments]


def _words(allowed: tuple[str, ...]) -> Any:  # noqa: ANN401
    return _of(Literal, *allowed) if allowed else str


def _object(shape: Object) -> type[Model]:
    members: dict[str, Any] = {name: _member(member) for name, member in shape.members.items()}
    made = create_model(_title(shape.what), __base__=Model, __doc__=shape.text, **members)
    if shape.open:
        made.model_config = ConfigDict(extra="allow", populate_by_name=True)
        made.model_rebuild(force=True)
    return made


def _member(member: Member) -> tuple[Any, Any]:
    kind: Any = member.kind
    if kind is int:
        kind = Long if member.long else Int
    elif kind is float:
        kind = Number
    elif kind is bool:
        kind = Switch
    elif member.words:
        kind = _words(member.words)
    if member.nullable:
        kind |= None
    # What is left out where null is allowed, too, the broker completes.
    default: Any = ... if member.required else None if member.nullable else member.default
    return kind, default


def _title(what: str) -> str:
    return "".join(word[0].upper() + word[1:] for word in what.split())


class AuthPolicies(Model):
    """Permissions of roles in a namespace."""

    namespaces: dict[str, list[AuthAction]] | None = Field(None, alias="namespace_auth")
    topics: dict[str, dict[str, list[AuthAction]]] | None = Field(None, alias="destination_auth")
    subscriptions: dict[str, list[str]] | None = Field(None, alias="subscription_auth_roles")


class _Namespace(Model):
    """All policies of a namespace. Rates are by the name of the cluster."""

    auth_policies: AuthPolicies | None = None
    bundles: Bundles | None = None
    latency_stats_sample_rate: dict[str, Int] | None = None
    deleted: Switch | None = None
    properties: Properties | None = None
    migrated: Switch | None = None


def _policies() -> type[Model]:
    kinds = {
        one.namespace.key: _of(dict, str, model(one.shape)) if one.per_cluster else model(one.shape)
        for one in ALL
        if one.namespace is not None
    }
    kinds["clusterDispatchRate"] = _of(dict, str, model(DISPATCH_RATE))
    members: dict[str, Any] = {key: (kind | None, None) for key, kind in kinds.items()}
    return create_model("Policies", __base__=_Namespace, __doc__=_Namespace.__doc__, **members)


if TYPE_CHECKING:
    BacklogQuota: TypeAlias = Model
    BacklogQuotas: TypeAlias = Model
    DispatchRate: TypeAlias = Model
    Policies: TypeAlias = Model
else:
    BacklogQuota: Final = model(BACKLOG_QUOTA)
    BacklogQuotas: Final = model(POLICIES["backlog_quota"].shape)
    DispatchRate: Final = model(DISPATCH_RATE)
    Policies: Final = _policies()

# SPDX-License-Identifier: Apache-2.0
"""Who may do what, over policies as Pulsar writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.access.actions import Action
from penstock.broker.access.authorization import Authorizer
from penstock.broker.access.rules import AccessRules
from penstock.core.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from penstock.broker.access.authorization import Resource

NAMESPACE = NamespaceName("shop", "orders")
TOPIC = TopicName.parse("persistent://shop/orders/new")
GRANTABLE = [Action.PRODUCE, Action.CONSUME, Action.FUNCTIONS, Action.SOURCES, Action.SINKS, Action.PACKAGES]


def may(
    role: str | None,
    action: Action,
    resource: Resource = TOPIC,
    *,
    subscription: str | None = None,
    wildcards: bool = False,
    **policies: Any,  # noqa: ANN401
) -> bool:
    authority = Authorizer(
        AccessRules(authorizing=True, super_user_roles=frozenset({"root"}), allow_wildcards=wildcards),
        tenants={"shop": {"adminRoles": ["owner"]}, "other": {"adminRoles": ["stranger"]}, "bare": {}},
        namespaces={"shop/orders": policies, "bare/ns": {}},
    )
    return authority.denial(role, action, resource, subscription) is None


def on_namespace(**grants: list[str]) -> dict[str, Any]:
    return {"auth_policies": {"namespace_auth": grants, "destination_auth": {}, "subscription_auth_roles": {}}}


def on_topic(topic: str, **grants: list[str]) -> dict[str, Any]:
    return {"auth_policies": {"destination_auth": {topic: grants}}}


@pytest.mark.parametrize("action", list(Action))
def test_a_superuser_may_do_everything_everywhere(action: Action) -> None:
    for resource in (TOPIC, NAMESPACE, "shop", "nowhere", NamespaceName("no", "where"), None):
        assert may("root", action, resource)


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.SUPERUSER])
def test_an_admin_of_the_tenant_may_do_everything_in_it_and_nothing_elsewhere(action: Action) -> None:
    for resource in (TOPIC, NAMESPACE, "shop"):
        assert may("owner", action, resource)
        assert not may("stranger", action, resource)
    for elsewhere in (TopicName.parse("other/ns/t"), NamespaceName("other", "ns"), "other", "nowhere"):
        assert not may("owner", action, elsewhere)


def test_an_admin_of_a_tenant_is_no_superuser() -> None:
    assert not may("owner", Action.SUPERUSER, None)
    assert not may("owner", Action.SUPERUSER, "shop")


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("role", [None, "", "nobody"])
def test_a_role_without_grants_may_do_nothing(role: str | None, action: Action) -> None:
    for resource in (TOPIC, NAMESPACE, "shop", TopicName.parse("bare/ns/t"), NamespaceName("bare", "ns"), "bare", None):
        assert not may(role, action, resource)


@pytest.mark.parametrize("granted", GRANTABLE)
@pytest.mark.parametrize("wanted", GRANTABLE)
def test_a_grant_on_a_namespace_holds_for_its_topics_and_for_this_action_alone(granted: Action, wanted: Action) -> None:
    policies = on_namespace(writer=[granted.value])
    for resource in (TOPIC, NAMESPACE, TOPIC.of_partition(3)):
        assert may("writer", wanted, resource, **policies) is (granted is wanted)
        assert not may("reader", wanted, resource, **policies)


@pytest.mark.parametrize("granted", [Action.PRODUCE, Action.CONSUME])
def test_a_grant_on_a_topic_holds_for_this_topic_and_its_partitions_alone(granted: Action) -> None:
    policies = on_topic(str(TOPIC), writer=[granted.value])
    for topic in (TOPIC, TOPIC.of_partition(0), TOPIC.of_partition(7)):
        assert may("writer", granted, topic, **policies)
        assert not may("reader", granted, topic, **policies)
    for other in ("shop/orders/old", "non-persistent://shop/orders/new", "shop/orders/new-partition-x"):
        assert not may("writer", granted, TopicName.parse(other), **policies)
    assert not may("writer", granted, NAMESPACE, **policies)


def test_a_grant_on_a_partition_does_not_hold_for_the_others() -> None:
    policies = on_topic(str(TOPIC.of_partition(1)), writer=["produce"])
    assert may("writer", Action.PRODUCE, TOPIC.of_partition(1), **policies)
    assert not may("writer", Action.PRODUCE, TOPIC.of_partition(2), **policies)
    assert not may("writer", Action.PRODUCE, TOPIC, **policies)


@pytest.mark.parametrize(("granted", "looks_up"), [("produce", True), ("consume", True), ("functions", False)])
def test_whoever_may_produce_or_consume_may_look_up(granted: str, looks_up: bool) -> None:
    assert may("client", Action.LOOKUP, **on_namespace(client=[granted])) is looks_up
    assert may("client", Action.LOOKUP, NAMESPACE, **on_namespace(client=[granted])) is looks_up
    assert may("client", Action.LOOKUP, **on_topic(str(TOPIC), client=[granted])) is looks_up


def test_grants_do_not_make_an_admin() -> None:
    policies = on_namespace(client=[action.value for action in Action])
    for action in (Action.SUPERUSER, Action.TENANT_ADMIN, Action.NAMESPACE_ADMIN):
        assert not may("client", action, NAMESPACE, **policies)


# -- wildcards


@pytest.mark.parametrize(
    ("pattern", "role", "matches"),
    [
        ("app.*", "app.web", True),
        ("app.*", "app.", True),
        ("app.*", "xapp.web", False),
        ("*.web", "app.web", True),
        ("*.web", "app.web2", False),
        ("*", "anybody", True),
        ("app", "app.web", False),
        ("a*b", "aXb", False),
        ("", "", False),
    ],
)
def test_a_star_at_one_end_of_a_grant_stands_for_anything_when_that_is_switched_on(
    pattern: str, role: str, matches: bool
) -> None:
    for policies in (on_namespace(**{pattern: ["produce"]}), on_topic(str(TOPIC), **{pattern: ["produce"]})):
        assert may(role, Action.PRODUCE, wildcards=True, **policies) is matches
        assert not may(role, Action.CONSUME, wildcards=True, **policies)
        assert not may(role, Action.PRODUCE, **policies)


def test_a_role_that_looks_like_a_pattern_is_only_itself() -> None:
    assert not may("app.*", Action.PRODUCE, wildcards=True, **on_namespace(**{"app.web": ["produce"]}))


# -- subscriptions


def subscribing(role: str, subscription: str, **policies: Any) -> bool:  # noqa: ANN401
    auth = {"namespace_auth": {"reader": ["consume"], "other": ["consume"]}, **policies.pop("auth", {})}
    return may(role, Action.CONSUME, subscription=subscription, auth_policies=auth, **policies)


def test_a_subscription_granted_to_some_is_theirs_alone() -> None:
    auth = {"subscription_auth_roles": {"audit": ["reader"], "open": []}}
    assert subscribing("reader", "audit", auth=auth)
    assert not subscribing("other", "audit", auth=auth)
    for subscription in ("open", "unnamed"):
        assert subscribing("other", subscription, auth=auth)


def test_a_subscription_granted_to_a_role_that_may_not_consume_is_no_way_in() -> None:
    assert not subscribing("nobody", "audit", auth={"subscription_auth_roles": {"audit": ["nobody"]}})


def test_a_subscriptions_name_may_have_to_begin_with_the_role() -> None:
    assert subscribing("reader", "reader-audit", subscription_auth_mode="Prefix")
    assert not subscribing("reader", "audit", subscription_auth_mode="Prefix")
    assert subscribing("reader", "audit", subscription_auth_mode="None")
    for above in ("root", "owner"):
        assert subscribing(above, "audit", subscription_auth_mode="Prefix")


# -- half-written policies


@pytest.mark.parametrize(
    "policies",
    [
        {},
        {"auth_policies": None},
        {"auth_policies": {}},
        {"auth_policies": {"namespace_auth": None, "destination_auth": None, "subscription_auth_roles": None}},
        {"auth_policies": {"namespace_auth": {"client": None}, "destination_auth": {str(TOPIC): None}}},
    ],
)
def test_policies_that_say_nothing_grant_nothing(policies: dict[str, Any]) -> None:
    for action in GRANTABLE:
        assert not may("client", action, subscription="s", wildcards=True, **policies)

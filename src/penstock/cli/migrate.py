# SPDX-License-Identifier: Apache-2.0
"""`penstock migrate`: a move to another cluster, Apache Pulsar's or penstock's, while clients go on.

Why `start` does everything again that is missing: it may be killed at any moment, and so may both clusters
(`migration_steps`). Where: it asks both admin ports, and reads and acknowledges there as a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.cli import contexts, output
from penstock.cli.exits import CommandFailed, Exit, wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from penstock.cli.contexts import Target
    from penstock.cli.migration_plan import Ends
    from penstock.cli.rest import Rest

_MIGRATE: Final = """\
Move namespaces to another cluster, Apache Pulsar's or penstock's, while producers and consumers go on: topics,
messages that somebody needs, places of subscriptions, policies, permissions and schemas. Clients are sent on
namespace by namespace. Every step can be given again, and the move be given up until `finish`.
"""
_ACTIONS: Final = {
    "plan": "say what will not fit there; changes nothing",
    "start": "copy everything, and send clients on; once more after an interruption",
    "status": "say how far the move is",
    "finish": "end the move: everything is there, and nothing is copied any more",
    "abort": "give the move up: clients stay here",
}
_PAUSE_MAX_S: Final = 5.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_MIGRATE)
    parser.set_defaults(run=_run)
    parser.add_argument("action", choices=list(_ACTIONS), help="; ".join(f"{k}: {v}" for k, v in _ACTIONS.items()))
    parser.add_argument("namespaces", nargs="*", metavar="NAMESPACE", help="TENANT/NAMESPACE (default: all)")
    there = parser.add_argument_group("the cluster to move to")
    there.add_argument("--to", required=True, metavar="URL", help="where clients connect there: pulsar://HOST:PORT")
    there.add_argument("--to-admin", required=True, metavar="URL", help="its admin port: http://HOST:PORT")
    there.add_argument("--to-token-file", metavar="FILE", help="a token of a superuser there; brokers here use it, too")
    there.add_argument("--to-cacert", metavar="FILE", help="certificates (PEM) of who signed that cluster's")
    parser.add_argument(
        "--pause-max", type=float, default=_PAUSE_MAX_S, metavar="SECONDS",
        help=f"clients of a namespace never wait longer; it is tried again then (default: {_PAUSE_MAX_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--all-retained", action="store_true", help="copy also what all subscriptions have acknowledged, if it is kept"
    )
    parser.add_argument(
        "--leave-behind", action="store_true", help="abort although messages were published there: they stay there"
    )
    parser.add_argument("--yes", action="store_true", help="start although the plan has warnings")
    output.add_option(parser)
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    from penstock.cli import migration_plan as plans
    from penstock.cli.rest import Rest

    if not 0 < arguments.pause_max <= _PAUSE_MAX_S:
        raise wrong(f"--pause-max {arguments.pause_max:g}: want more than 0 and at most {_PAUSE_MAX_S:g} seconds")
    there = contexts.Target(
        url=arguments.to,
        admin_url=arguments.to_admin,
        token_file=arguments.to_token_file or "",
        cacert=arguments.to_cacert or "",
    )
    with Rest(contexts.target(arguments)) as here, Rest(there) as other:
        both = plans.ends(here, other)
        chosen = plans.namespaces(here, arguments.namespaces)
        if arguments.action == "plan":
            return _plan(both, chosen, arguments.output)
        if arguments.action == "start":
            return _start(both, chosen, there, arguments)
        if arguments.action == "status":
            output.show(_status(both, chosen), arguments.output)
            return Exit.OK
        if arguments.action == "finish":
            return _finish(both, chosen)
        return _abort(both, chosen, leave_behind=arguments.leave_behind)


def _plan(both: Ends, chosen: Sequence[str], how: str) -> int:
    from penstock.cli import migration_plan as plans

    findings = list(plans.plan(both, chosen))
    output.show([{"of": one.of, "what": one.what, "blocks": one.blocks} for one in findings], how)
    blocking = sum(one.blocks for one in findings)
    output.notice(
        f"{len(chosen)} namespaces would move from {both.own} to {both.theirs}; {len(findings)} things to know, "
        f"{blocking} that must be mended first"
    )
    return Exit.BAD_NEWS if blocking else Exit.OK


def _start(both: Ends, chosen: Sequence[str], there: Target, arguments: argparse.Namespace) -> int:
    from penstock.cli import migration_plan as plans
    from penstock.cli import migration_steps as steps
    from penstock.cli.feeds import connected
    from penstock.net.clock import SystemClock

    for one in plans.plan(both, chosen):
        output.notice(f"{one.of}: {one.what}")
        if one.blocks:
            raise CommandFailed("nothing was changed: mend this first (`penstock migrate plan` names all)")
    steps.make_cluster(both, cluster_data(there))
    steps.make_groups(both)
    left = []
    for namespace in chosen:
        if not both.here.get(f"/admin/v2/namespaces/{namespace}/migration")["moved"]:
            left.append(namespace)
            steps.make_namespace(both, namespace)
            steps.make_topics(both, namespace)
            steps.replicate(both, namespace, all_retained=arguments.all_retained)
    with connected(there) as cluster:
        for namespace in left:
            switch = steps.Switch(both, cluster, namespace, SystemClock(), pause_max_s=arguments.pause_max)
            sent = switch.run(output.notice)
            output.notice(
                f"{namespace}: clients are sent on; {sent.topics} topics, {sent.subscriptions} subscriptions, "
                f"a pause of {sent.pause_s:.2f} s"
            )
    output.notice("all clients are sent on; end the move with `penstock migrate finish`")
    return Exit.OK


def cluster_data(there: Target) -> dict[str, Any]:
    """Return what brokers here have to know of the cluster there."""
    tls, web_tls = there.url.startswith("pulsar+ssl"), there.admin_url.startswith("https")
    data: dict[str, Any] = {
        "brokerServiceUrlTls" if tls else "brokerServiceUrl": there.url,
        "serviceUrlTls" if web_tls else "serviceUrl": there.admin_url,
        "brokerClientTlsEnabled": tls,
    }
    if there.cacert:
        data["brokerClientTrustCertsFilePath"] = there.cacert
    if token := there.token():
        data |= {"authenticationPlugin": "token", "authenticationParameters": f"token:{token}"}
    return data


def _status(both: Ends, chosen: Sequence[str]) -> list[dict[str, Any]]:
    from penstock.cli import migration_plan as plans
    from penstock.cli import migration_steps as steps

    rows = []
    for namespace in chosen:
        path = f"/admin/v2/namespaces/{namespace}"
        said = both.here.get(f"{path}/migration")
        copying = both.label in both.here.get(f"{path}/replication")
        states = [steps.look(both, topic) for topic in plans.contents(both.here, namespace).topics] if copying else []
        stage = "not begun"
        if said["moved"]:
            stage = "moved"
        elif said["heldForMs"]:
            stage = "clients wait"
        elif copying:
            stage = "copying"
        missing = sum(state.behind for state in states)
        rows.append({"namespace": namespace, "stage": stage, "topics": len(states), "missing": missing})
    return rows


def _finish(both: Ends, chosen: Sequence[str]) -> int:
    from penstock.cli import migration_steps as steps

    for row in _status(both, chosen):
        if row["stage"] != "moved" or row["missing"]:
            raise CommandFailed(
                f"{row['namespace']} is not there yet ({row['stage']}, {row['missing']:,} entries are missing): give "
                f"`penstock migrate start` once more, or name the namespaces that are to be finished"
            )
    for namespace in chosen:
        steps.stop_replicating(both, namespace)
    if _named(both):
        output.notice("the rest of the cluster is still here; finish it, too, and the move is over")
        return Exit.OK
    steps.forget_cluster(both)
    output.notice(f"the move to {both.theirs} is over; this cluster sends clients on for as long as it runs")
    return Exit.OK


def _abort(both: Ends, chosen: Sequence[str], *, leave_behind: bool) -> int:
    from penstock.cli import migration_steps as steps

    moved = [row["namespace"] for row in _status(both, chosen) if row["stage"] == "moved"]
    if moved and not leave_behind:
        raise CommandFailed(
            f"clients of {', '.join(moved)} were sent on: what they have published since is there, and stays there. "
            f"With --leave-behind they begin here where they were when they were sent on"
        )
    for namespace in chosen:
        both.here.ask("POST", f"/admin/v2/namespaces/{namespace}/migration", {"migrated": "false"})
        steps.stop_replicating(both, namespace)
    if not _named(both):
        steps.forget_cluster(both)
    output.notice("the move is given up; nothing is deleted there, and clients connect here")
    if moved:
        output.notice(f"restart the clients of {', '.join(moved)}: those that were sent on stay there until then")
    return Exit.OK


def _named(both: Ends) -> list[str]:
    """Return the namespaces that are still replicated there."""
    from penstock.cli import migration_plan as plans

    def copies(rest: Rest, namespace: str) -> bool:
        return both.label in rest.get(f"/admin/v2/namespaces/{namespace}/replication")

    return [one for one in plans.namespaces(both.here, ()) if copies(both.here, one)]

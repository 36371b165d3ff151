# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes start the program as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import yaml

from penstock.cli.main import build_parser
from penstock.proxy.groups import parse
from penstock.settings import load

Yaml: TypeAlias = Any  # parsed

MANIFESTS: Final = Path(__file__).resolve().parents[2] / "ops/kubernetes"
DOCUMENTS: Final = [
    document for file in sorted(MANIFESTS.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())
]


def one(kind: str) -> Yaml:
    (found,) = (document for document in DOCUMENTS if document["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def pod() -> Yaml:
    return one("Deployment")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: Yaml) -> Yaml:
    (only,) = pod["containers"]
    return only


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The settings of the ConfigMap."""
    path = tmp_path / "proxy.conf"
    path.write_text(one("ConfigMap")["data"]["proxy.conf"])
    return path


def test_the_arguments_are_those_of_the_program(container: Yaml) -> None:
    assert container["command"] == ["penstock", "proxy"]
    build_parser().parse_args(["proxy", *container["args"]])  # Exits if it does not know one.
    given = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert {"pulsar": given["port"], "web": given["admin-port"]} == ports


def test_every_setting_of_the_configuration_exists(file: Path) -> None:
    settings = load(file=file, environment={})
    assert settings.warnings == ()
    assert settings.group_file == Path("/etc/penstock/groups.toml")


def test_the_pod_is_killed_only_after_its_clients_could_leave(pod: Yaml, file: Path) -> None:
    settings = load(file=file, environment={})
    leaving_s = (settings.unready_ms + settings.drain_timeout_ms) / 1_000
    assert pod["terminationGracePeriodSeconds"] > leaving_s
    ready, alive = (pod["containers"][0][probe] for probe in ("readinessProbe", "livenessProbe"))
    assert settings.unready_ms / 1_000 > ready["periodSeconds"] * ready["failureThreshold"]
    assert alive["periodSeconds"] * alive["failureThreshold"] > pod["terminationGracePeriodSeconds"]


def test_probes_and_services_use_ports_and_paths_that_exist(container: Yaml) -> None:
    names = {port["name"] for port in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] in names
        assert asked["path"] == "/healthz"  # needs no credentials
    assert {port["targetPort"] for port in one("Service")["spec"]["ports"]} == names


def test_selectors_choose_the_pods_and_one_pod_may_be_missing() -> None:
    deployment, budget = one("Deployment")["spec"], one("PodDisruptionBudget")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    (rule,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    for selector in (
        deployment["selector"]["matchLabels"],
        one("Service")["spec"]["selector"],
        budget["selector"]["matchLabels"],
        rule["podAffinityTerm"]["labelSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert budget["minAvailable"] == deployment["replicas"] - 1


def test_the_sample_of_groups_is_one_that_a_proxy_reads() -> None:
    text = one("ConfigMap")["data"]["groups.toml"]
    for sample, names in ((text, set()), (text.replace("# ", ""), {"gold"})):
        assert set(parse(sample, "groups.toml").quotas) == names


def test_mounted_files_come_from_the_configuration(pod: Yaml, container: Yaml) -> None:
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]
    assert f"--config={mount['mountPath']}/proxy.conf" in container["args"]

"""The Helm chart: the real Helm's objects for tables of values, by Kubernetes' schemas and the worker's own parser."""

from __future__ import annotations

import functools
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import kubernetes_validate
import pytest
import yaml

from lumigrad.client import Client
from lumigrad.server.core.config import Config
from support.calls.metrics_table import documented
from support.deploy.certificates import Authority
from support.deploy.chart import CHART, Rendered, described, install, table
from support.deploy.helm import HelmError
from support.deploy.serve_options import SUPERVISOR_SECONDS, config_of
from support.workers.mixed_load import CAMERA, spheres
from support.workers.worker import LUMIGRAD, WorkerProcess

TOKENS = {"enabled": True, "tokens": {"lab": "0123456789abcdef0123"}}
TLS = {"enabled": True, "existingSecret": "worker-tls"}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "cpu": {"device": "cpu"},
    "tls": {"tls": TLS},
    "tls and tokens": {"tls": TLS, "auth": TOKENS},
    "client certificates": {"tls": {**TLS, "clientCa": True}},
    "tokens of one's own": {"tls": TLS, "auth": {"enabled": True, "existingSecret": "tokens"}},
    "tokens alone": {"auth": TOKENS},
    "keda": {"autoscaling": {"kind": "keda", "maxReplicas": 8}},
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "several": {"replicas": 3, "service": {"clusterIp": True, "annotations": {"a": "b"}}},
    "volumes": {"spool": {"persistence": {"enabled": True, "storageClass": "fast"}}},
    "no spool": {"spool": {"enabled": False}},
    "monitoring": {"metrics": {"serviceMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "p"}}},
    "bare": {
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"name": "mine"},
        "topologyKeys": [],
        "tolerations": [],
    },
    "everything else": {
        "worker": {
            "port": 6000,
            "metricsPort": 6001,
            "lameDuckSeconds": 15,
            "drainSeconds": 600,
            "logFormat": "plain",
            "traceEndpoint": "http://collector:4317",
            "extraArgs": ["--scene-mib=8192", "--reflection"],
            "env": [{"name": "LUMIGRAD_NUM_THREADS", "value": "4"}],
        },
        "gpu": {"resource": "nvidia.com/mig-1g.10gb", "runtimeClassName": "nvidia"},
        "image": {"repository": "registry.example.com/lumigrad", "tag": "test", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "networkPolicy": {
            "callers": [{"namespaceSelector": {}}],
            "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "collector"}}}], "ports": [{"port": 4317}]}],
        },
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "graphics"},
        "nodeSelector": {"gpu": "large"},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    },
}
# The oldest version that the chart supports, the newest that the package knows, and some between.
KUBERNETES = ("1.27", "1.30", "1.33", "1.37")
# Kinds that are not Kubernetes' own.
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    return {name: install(values) for name, values in VALUES.items()}


@pytest.fixture(params=VALUES, ids=[name.replace(" ", "-") for name in VALUES])
def release(request: pytest.FixtureRequest, rendered: dict[str, Rendered]) -> Rendered:
    return rendered[request.param]


@functools.cache
def validate(made: str, version: str) -> None:
    """Validates an object, in JSON, against the schema of its kind; cached, since many releases have the same one."""
    kubernetes_validate.validate(json.loads(made), version, strict=True)


def test_objects_follow_the_schemas_of_kubernetes(release: Rendered) -> None:
    for made in release.objects:
        if made["kind"] not in CUSTOM:
            for version in KUBERNETES:
                validate(json.dumps(made, sort_keys=True), version)


def test_the_worker_takes_its_options(release: Rendered) -> None:
    config = config_of(release.container["args"])
    assert (config.host, config.metrics_address) == ("0.0.0.0", "0.0.0.0")
    assert config.is_loopback is False
    mounts = {mount["mountPath"] for mount in release.container["volumeMounts"]}
    files = (config.tls_cert, config.tls_key, config.tls_client_ca, config.tokens_file)
    for path in filter(None, files):
        assert path.rpartition("/")[0] in mounts
    assert (config.spool in mounts) is bool(config.spool)


def test_probes_and_services_meet_the_ports(release: Rendered) -> None:
    config = config_of(release.container["args"])
    ports = {port["name"]: port["containerPort"] for port in release.container["ports"]}
    assert ports == {"grpc": config.port, "metrics": config.metrics_port}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = release.container[name]
        # The kubelet speaks no TLS with gRPC.
        expected = (
            {"httpGet": {"path": "/health", "port": "metrics"}} if config.tls_cert else {"grpc": {"port": config.port}}
        )
        assert {key: probe[key] for key in probe if key in ("httpGet", "grpc", "exec", "tcpSocket")} == expected
    for service in release.all("Service"):
        assert {port["name"] for port in service["spec"]["ports"]} <= set(ports)
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_a_pod_has_the_time_to_drain(release: Rendered) -> None:
    config = config_of(release.container["args"])
    needed = config.lame_duck_seconds + config.drain_seconds + SUPERVISOR_SECONDS
    assert release.pod["terminationGracePeriodSeconds"] > needed


def test_callers_notice_before_a_worker_refuses(release: Rendered) -> None:
    config, probe = config_of(release.container["args"]), release.container["readinessProbe"]
    # A worker that is stopped leaves the Service at once; the lame duck is for callers that already have its address.
    assert config.lame_duck_seconds >= 5
    assert probe["periodSeconds"] <= config.lame_duck_seconds


def test_a_pod_may_do_nothing_that_it_need_not(release: Rendered) -> None:
    pod, container = release.pod, release.container
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable <= {"/tmp", "/dev/shm", "/var/lib/lumigrad/spool", "/var/cache/cuda"}


def test_selectors_find_the_pods(release: Rendered) -> None:
    stateful = release.one("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"].items()
    selectors = [stateful["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in release.all("Service")]
    selectors += [policy["spec"]["podSelector"]["matchLabels"] for policy in release.all("NetworkPolicy")]
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in release.all("PodDisruptionBudget")]
    selectors += [
        spread["labelSelector"]["matchLabels"] for spread in release.pod.get("topologySpreadConstraints") or []
    ]
    assert all(selector.items() <= labels for selector in selectors)
    services = {service["metadata"]["name"]: service for service in release.all("Service")}
    assert services[stateful["serviceName"]]["spec"]["clusterIP"] == "None"


def test_a_worker_that_is_started_so_answers_the_probes(rendered: dict[str, Rendered], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, tls, tokens = authority.sign("worker"), tmp_path / "tls", tmp_path / "tokens"
    tls.mkdir(), tokens.mkdir()
    (tls / "tls.crt").write_bytes(own.certificate.read_bytes())
    (tls / "tls.key").write_bytes(own.key.read_bytes())
    (tokens / "tokens").write_text(rendered["tls and tokens"].one("Secret")["stringData"]["tokens"])
    places = {
        "/etc/lumigrad": str(tmp_path),
        "/var/lib/lumigrad": str(tmp_path),
        "cuda:0": "cpu",
        "0.0.0.0": "127.0.0.1",
    }
    options = rendered["tls and tokens"].container["args"]
    for before, after in places.items():
        options = [option.replace(before, after) for option in options]
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    process = WorkerProcess(command=(LUMIGRAD, "serve", *options), credentials=credentials)
    try:
        path = rendered["tls and tokens"].container["readinessProbe"]["httpGet"]["path"]
        with urllib.request.urlopen(f"http://127.0.0.1:{process.metrics_port}{path}", timeout=60) as answer:
            assert answer.status == 200
        token = VALUES["tls and tokens"]["auth"]["tokens"]["lab"]
        with Client(f"localhost:{process.port}", tls=authority.certificate, token=token) as client:
            assert client.render(spheres(), CAMERA).color.any()
    finally:
        process.stop()


def test_gpus_are_asked_for_where_they_are_used(rendered: dict[str, Rendered]) -> None:
    for name, resource in (("defaults", "nvidia.com/gpu"), ("everything else", "nvidia.com/mig-1g.10gb")):
        assert rendered[name].container["resources"]["limits"][resource] == 1
        assert config_of(rendered[name].container["args"]).device == "cuda:0"
    assert set(rendered["cpu"].container["resources"]["limits"]) == {"memory"}
    assert config_of(rendered["cpu"].container["args"]).device == "cpu"


def test_code_that_a_gpu_compiled_outlives_its_container(rendered: dict[str, Rendered]) -> None:
    for name in ("defaults", "cpu"):
        mounts = {mount["name"]: mount["mountPath"] for mount in rendered[name].container["volumeMounts"]}
        assert mounts.get("cuda-cache") == ("/var/cache/cuda" if name == "defaults" else None)


def test_insecure_is_said_only_where_something_is_missing(rendered: dict[str, Rendered]) -> None:
    insecure = {name for name, release in rendered.items() if config_of(release.container["args"]).insecure}
    assert set(VALUES) - insecure == {"tls and tokens", "client certificates", "tokens of one's own"}
    assert all(("not encrypted" in release.notes) is (name in insecure) for name, release in rendered.items())


def test_tokens_are_a_file_that_the_worker_reads(rendered: dict[str, Rendered]) -> None:
    secret = rendered["tls and tokens"].one("Secret")
    assert secret["stringData"]["tokens"] == "lab: 0123456789abcdef0123\n"
    (volume,) = [volume for volume in rendered["tls and tokens"].pod["volumes"] if volume["name"] == "tokens"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert rendered["tokens of one's own"].all("Secret") == []


def test_scaling_goes_by_metrics_that_a_worker_exports(rendered: dict[str, Rendered]) -> None:
    keda = rendered["keda"].one("ScaledObject")["spec"]
    query = keda["triggers"][0]["metadata"]["query"]
    names = set(re.findall(r"lumigrad_\w+", query))
    (metric,) = rendered["hpa"].one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert names | {metric["pods"]["metric"]["name"]} <= set(documented())
    for name in ("keda", "hpa"):
        stateful = rendered[name].one("StatefulSet")
        assert "replicas" not in stateful["spec"]
        (scaler,) = rendered[name].all("ScaledObject") + rendered[name].all("HorizontalPodAutoscaler")
        assert scaler["spec"]["scaleTargetRef"]["name"] == stateful["metadata"]["name"]
        assert rendered[name].all("PodDisruptionBudget")


def test_monitoring_has_the_rules_and_the_dashboard_of_the_repository(rendered: dict[str, Rendered]) -> None:
    release, deploy = rendered["monitoring"], CHART.parents[1]
    groups = [
        group
        for name in ("rules.yml", "alerts.yml")
        for group in yaml.safe_load((deploy / "prometheus" / name).read_text())["groups"]
    ]
    assert release.one("PrometheusRule")["spec"]["groups"] == groups
    board = release.one("ConfigMap")["data"]["lumigrad.json"]
    assert board.strip() == (deploy / "grafana" / "lumigrad.json").read_text().strip()
    monitor = release.one("ServiceMonitor")
    (service,) = release.all("Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    # The rules select this job.
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "lumigrad"
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_spool_on_volumes_has_room_for_its_files(rendered: dict[str, Rendered]) -> None:
    (claim,) = rendered["volumes"].one("StatefulSet")["spec"]["volumeClaimTemplates"]
    config = config_of(rendered["volumes"].container["args"])
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Mi")) >= 1.1 * config.spool_mib - 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"replica": 2}, "replica"),
        ({"device": "tpu"}, "device"),
        ({"worker": {"port": 0}}, "port"),
        ({"auth": {"enabled": True}}, "auth: expected auth.existingSecret or auth.tokens"),
        ({"auth": {"enabled": True, "tokens": {"lab": "short"}}}, "lab"),
        ({"tls": {"enabled": True}}, "tls.existingSecret: expected the name of a Secret"),
        ({"tls": {"clientCa": True}}, "tls"),
        ({"autoscaling": {"kind": "cron"}}, "kind"),
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(HelmError, match=re.escape(text)):
        install(values)


def test_every_value_is_documented_with_its_default() -> None:
    assert table() in (CHART / "README.md").read_text(encoding="utf-8")
    named = {name for name, _, _ in described()}

    def leaves(values: dict[str, Any], before: str = "") -> set[str]:
        found = set()
        for key, value in values.items():
            name = f"{before}{key}"
            inside = isinstance(value, dict) and value and name not in named
            found |= leaves(value, f"{name}.") if inside else {name}
        return found

    assert leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))) == named


def test_a_release_by_another_name_stands_beside_the_first() -> None:
    names = {(made["kind"], made["metadata"]["name"]) for made in install({}, release="second").objects}
    assert {name for _, name in names} == {"second-lumigrad", "second-lumigrad-headless"}


def test_every_option_of_the_template_exists() -> None:
    template = (CHART / "templates" / "statefulset.yaml").read_text(encoding="utf-8")
    options = {option.replace("-", "_") for option in re.findall(r"- --([a-z-]+)", template)}
    assert options <= set(Config.__dataclass_fields__)

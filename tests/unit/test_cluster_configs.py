"""The clusters to start: as Ray's launcher reads them, with the versions that the package pins, the dashboard on localhost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "cluster_configs"
LAUNCHER = ("aws.yaml", "gcp.yaml")


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("name", LAUNCHER)
def test_launcher_config_fits_rays_schema_and_names_its_node_types(name: str) -> None:
    import jsonschema

    config = read(name)
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    workers = [kind for kind in config["available_node_types"] if kind != config["head_node_type"]]
    assert all(config["available_node_types"][kind]["max_workers"] <= config["max_workers"] for kind in workers)


@pytest.mark.parametrize("name", LAUNCHER)
def test_launcher_config_every_node_shares_the_cache_and_opens_no_dashboard(name: str) -> None:
    config = read(name)
    head, worker = (" ".join(config[f"{role}_start_ray_commands"]) for role in ("head", "worker"))
    for command in (head, worker):
        assert "RL_CLUSTER_CACHE=/mnt/rl_cluster/cache" in command
    assert "--dashboard-host=127.0.0.1" in head
    assert any("/mnt/rl_cluster:/mnt/rl_cluster" in option for option in config["docker"]["run_options"])


@pytest.mark.parametrize("name", [*LAUNCHER, "kuberay.yaml", "Dockerfile"])
def test_cluster_config_names_the_pinned_ray(name: str) -> None:
    pinned = re.search(r"ray\[default,serve\]==([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    text = (FOLDER / name).read_text()
    named = re.findall(r"rayproject/ray:([\d.]+)-py311|rayVersion: \"([\d.]+)\"", text)
    assert {first or second for first, second in named} == {pinned.group(1)}


def test_kuberay_config_has_one_shared_volume_and_workers_with_a_gpu() -> None:
    claim, cluster = yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
    head, worker = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"][0]
    for group in (head, worker):
        pod = group["template"]["spec"]
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        assert claims == [claim["metadata"]["name"]]
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1

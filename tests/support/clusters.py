"""Launchers of recipes/ with printers in place of their programs: the words that `understudy` gets
on a host.
"""

import importlib.util
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from understudy.config.train import TrainConfig
from understudy.testing.docs import ROOT

NO_CLUSTER = ("ray", "ray.train", "ray.train.collective", "ray.train.torch")


def load(path: str) -> dict[str, Any]:
    """Content of a YAML file of the repository."""
    content: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    return content


def started(
    script: str, variables: dict[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Words of the `understudy` that a script ends as, and its environment.

    Args:
        script: for bash.
        variables: its environment.
        folder: an empty folder.
    """
    program = folder / "bin/understudy"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"; printf "\\036"; env -0\n')
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, cwd=ROOT, check=True
    )
    words, _, rest = done.stdout.partition("\036")
    return words.strip("\0").split("\0"), dict(
        line.split("=", 1) for line in rest.strip("\0").split("\0")
    )


def kubernetes_pod(create: list[str], index: int, folder: Path) -> tuple[str, dict[str, str]]:
    """Script and environment of a pod of recipes/kubernetes, with `folder` in place of the root of
    its volumes.

    Args:
        create: words of `kubectl create configmap`.
        index: number of the pod.
        folder: an empty folder.
    """
    [replicated] = load("recipes/kubernetes/jobset.yaml")["spec"]["replicatedJobs"]
    [container] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    content = {}
    for word in create:
        kind, _, entry = word.partition("=")
        name, _, value = entry.rpartition("=") if kind == "--from-file" else entry.partition("=")
        if kind == "--from-file":
            content[name or Path(value).name] = (ROOT / value).read_text()
        elif kind == "--from-literal":
            content[name] = value
    (folder / "recipe").mkdir(parents=True)
    (folder / "runs").mkdir()
    for name, value in content.items():
        (folder / "recipe" / name).write_text(value)
    env = {"NODE_RANK": str(index)}
    for one in container["env"]:
        source = one.get("valueFrom", {}).get("configMapKeyRef")
        if "value" in one:
            env[one["name"]] = one["value"]
        elif source is not None and source["key"] in content:
            assert source["name"] == create[create.index("configmap") + 1]
            env[one["name"]] = content[source["key"]]
    shell, *command = container["command"]
    words = [f"{folder}{word}" if word.startswith("/") else word for word in command]
    return shlex.join([shell, *words]), env


def skypilot_host(launch: list[str], index: int, folder: Path) -> tuple[str, dict[str, str]]:
    """Script and environment of a host of the task in `sky jobs launch`, on hosts 10.0.0.5 and
    following.

    Args:
        launch: words of the command.
        index: number of the host.
        folder: a folder for runs.
    """
    task = load(next(word for word in launch if word.endswith(".sky.yaml")))
    hosts = (
        int(launch[launch.index("--num-nodes") + 1])
        if "--num-nodes" in launch
        else task["num_nodes"]
    )
    given = [after for word, after in pairwise(launch) if word == "--env"]
    env = task["envs"] | dict(text.split("=", 1) for text in given)
    assert env.keys() == task["envs"].keys()
    env |= {
        "RUN": f"{folder}{env['RUN']}",
        "SKYPILOT_NUM_NODES": str(hosts),
        "SKYPILOT_NODE_RANK": str(index),
        "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{5 + number}" for number in range(hosts)),
        "SKYPILOT_NUM_GPUS_PER_NODE": task["resources"]["accelerators"].partition(":")[2],
    }
    return task["run"], env


def ray_worker(words: list[str], patch: pytest.MonkeyPatch) -> tuple[TrainConfig, int]:
    """Settings with which a worker of `python recipes/ray/train.py …` trains, and the number of
    workers.
    """
    trainers = []
    trained = list[TrainConfig]()

    def trainer(work: Any, **options: Any) -> SimpleNamespace:
        trainers.append(options["scaling_config"])
        return SimpleNamespace(fit=lambda: SimpleNamespace(return_value=work()))

    for name in NO_CLUSTER:
        patch.setitem(sys.modules, name, MagicMock(name=name))
    modules: Any = sys.modules
    modules["ray"].train.ScalingConfig = lambda num_workers, use_gpu: num_workers
    modules["ray"].cluster_resources.return_value = {"GPU": 8}
    modules["ray.train.torch"].TorchTrainer = trainer
    modules["ray.train.collective"].broadcast_from_rank_zero = lambda value: value
    spec = importlib.util.spec_from_file_location("ray_recipe", ROOT / words[1])
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    patch.setattr(recipe, "run_and_report", lambda command, config: trained.append(config) or 0)
    patch.setattr(sys, "argv", words[1:])
    assert recipe.main() == 0
    [config], [workers] = trained, trainers
    return config, workers


def shell_lines(page: Path, program: str) -> list[list[str]]:
    """Words of the lines of a page's shell blocks that begin with a program."""
    text = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL))
    return [shlex.split(line) for line in text.splitlines() if line.startswith(program)]

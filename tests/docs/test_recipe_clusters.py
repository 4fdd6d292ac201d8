"""recipes/kubernetes and recipes/skypilot: their files fit each other, and start commands that
understudy reads.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from support.clusters import kubernetes_pod, load, ray_worker, shell_lines, skypilot_host, started
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import mesh_shape
from understudy.testing.docs import ROOT
from understudy_kit.cli.main import read_settings, split_launch
from understudy_kit.launch import Hosts, read_hosts

PAGES = [ROOT / "recipes" / name / "README.md" for name in ("kubernetes", "skypilot", "ray")]
SETTINGS = ROOT / "recipes/kubernetes/settings.yaml"


def check(words: list[str], env: dict[str, str], hosts: Hosts, ranks: int) -> TrainConfig:
    """Check the command of a host; returns the settings of its run."""
    count, rest = split_launch(words[1:])
    assert words[0] == "train"
    assert count == ranks
    assert read_hosts(env) == hosts
    config = read_settings("train", rest)
    assert isinstance(config, TrainConfig)
    mesh_shape(config.mesh, hosts.count * ranks)
    assert config.batch_size % (hosts.count * ranks) == 0
    return config


def test_jobset_starts_the_ranks_of_one_run(tmp_path: Path) -> None:
    jobset = load("recipes/kubernetes/jobset.yaml")
    [replicated] = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    name = jobset["metadata"]["name"]
    # A pod has the name JOBSET-JOB-INDEX-POD, in the domain of the JobSet.
    assert env["MASTER_ADDR"] == f"{name}-{replicated['name']}-0-0.{name}"
    assert int(env["NNODES"]) == job["parallelism"] == job["completions"]
    assert int(env["RANKS"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert {"containerPort": int(env["MASTER_PORT"])} in container["ports"]
    [index] = [one for one in container["env"] if one["name"] == "NODE_RANK"]
    assert index["valueFrom"]["fieldRef"]["fieldPath"].endswith(
        "['batch.kubernetes.io/job-completion-index']"
    )
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }
    assert job["completionMode"] == "Indexed"
    # The image's user may write to the claims.
    image = (ROOT / "Containerfile").read_text()
    assert "\nUSER 1000:1000\n" in image
    assert "useradd --create-home --uid 1000 " in image
    user = pod["securityContext"]
    assert (user["runAsUser"], user["runAsGroup"], user["fsGroup"]) == (1000, 1000, 1000)
    asked = container["resources"]["requests"]
    most = container["resources"]["limits"]
    assert asked["memory"] == most["memory"]  # /dev/shm of the pod is part of it
    assert "cpu" in asked
    assert "cpu" not in most
    # A pod failure policy needs pods that are not restarted; exit code 2 ends the JobSet.
    assert (pod["restartPolicy"], job["backoffLimit"]) == ("Never", 0)
    [rule] = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    [fail] = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], fail["action"]) == ("FailJob", "FailJobSet")
    assert fail["onJobFailureReasons"] == ["PodFailurePolicy"]

    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert container["command"][2].startswith(mounts["runs"])
    [create] = shell_lines(PAGES[0], "kubectl create")
    script, variables = kubernetes_pod(create, 3, tmp_path)
    hosts = Hosts(4, 3, env["MASTER_ADDR"], int(env["MASTER_PORT"]))
    config = check(*started(script, variables, tmp_path / "first"), hosts, 8)
    assert config.data.root.startswith(mounts["runs"])
    run = Path(config.output_dir)
    run.mkdir()
    (run / "config.yaml").touch()
    resumed, _ = started(f"{script} --steps 5 2> {tmp_path}/note", variables, tmp_path / "second")
    assert resumed == ["resume", str(run), "--launch", "8"]
    note = (tmp_path / "note").read_text()
    assert str(run) in note
    assert container["command"][3] in note
    assert "--steps 5" in note


def test_literal_of_the_config_map_reaches_the_run(tmp_path: Path) -> None:
    [create], page = shell_lines(PAGES[0], "kubectl create"), PAGES[0].read_text()
    [literal] = re.findall(r"`(--from-literal=.*?)`", page)
    script, variables = kubernetes_pod([*create, *shlex.split(literal)], 0, tmp_path)
    words, env = started(script, variables, tmp_path / "first")
    assert (
        check(words, env, read_hosts(env), 8).steps
        == 50000
        != load("recipes/kubernetes/settings.yaml")["steps"]
    )


def test_job_checks_a_bucket_with_the_cores_of_its_pod() -> None:
    pod = load("recipes/kubernetes/check.yaml")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    understudy, command, *words = container["command"] + container["args"]
    config = read_settings(command, words)
    assert (understudy, config.problems()) == ("understudy", [])
    assert config.workers == int(container["resources"]["requests"]["cpu"])
    assert config.work.startswith(container["volumeMounts"][0]["mountPath"])
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }


def test_jobs_of_ray_divide_tools_on_their_cluster() -> None:
    jobs = [
        words[words.index("understudy") + 1 :] for words in shell_lines(PAGES[2], "ray job submit")
    ]
    assert [command for command, *_ in jobs] == ["check", "edit"]
    for command, *words in jobs:
        config = read_settings(command, words)
        assert (config.problems(), config.ray) == ([], "auto")


def test_skypilot_task_starts_the_ranks_of_one_run(tmp_path: Path) -> None:
    task = load("recipes/skypilot/train.sky.yaml")
    volume = load("recipes/skypilot/volume.yaml")
    [(place, name)] = task["volumes"].items()
    assert name == volume["name"]
    assert volume["config"]["access_mode"] == "ReadWriteMany"
    assert task["envs"]["RUN"].startswith(place)
    assert task["resources"]["job_recovery"]["max_restarts_on_errors"] > 0
    gpus = int(task["resources"]["accelerators"].partition(":")[2])
    [launch] = shell_lines(PAGES[1], "sky jobs launch")
    script, variables = skypilot_host(launch, 1, tmp_path)
    words, env = started(script, variables, tmp_path / "task")
    config = check(words, env, Hosts(task["num_nodes"], 1, "10.0.0.5", 29500), gpus)
    assert (config.steps, config.output_dir) == (50000, f"{tmp_path}{task['envs']['RUN']}")
    assert config.steps != load("recipes/kubernetes/settings.yaml")["steps"]
    extras = re.search(r"'\.\[([a-z,]+)\]'", task["setup"])
    assert extras is not None


def test_ray_trains_with_the_settings_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of the recipe in a Ray of mocks; `nox -s ray` runs it on a cluster."""
    [words] = shell_lines(PAGES[2], "python recipes/ray/train.py")
    config, workers = ray_worker([*words[:2], str(tmp_path / "run"), *words[3:]], monkeypatch)
    assert (config.steps, config.output_dir, workers) == (50000, str(tmp_path / "run"), (8, 32))
    assert config.batch_size == load("recipes/kubernetes/settings.yaml")["batch_size"]


@pytest.mark.parametrize("script", ["scripts/start-or-resume", "scripts/slurm/train.sbatch"])
def test_a_string_of_further_settings_reaches_the_run(script: str, tmp_path: Path) -> None:
    """Words of EXTRA_ARGS follow those of the command, and no pattern in them becomes file
    names.
    """
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    srun.chmod(0o755)
    variables = {
        "EXTRA_ARGS": "--seed 3  --optim.freeze s*",
        "MASTER_ADDR": "here",
        "SLURM_NODEID": "0",
    }
    variables |= {"SLURM_NNODES": "1", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "here"}
    words, _ = started(
        f"PATH=$PATH:{srun.parent} {script} {tmp_path}/run c.yaml --steps 5",
        variables,
        tmp_path / "own",
    )
    expected = (
        f"train c.yaml --output-dir {tmp_path}/run --steps 5 --seed 3 --optim.freeze s*".split()
    )
    assert words == [*expected, "--launch", "1"]


def test_start_or_resume_without_a_config_is_wrong_input() -> None:
    done = subprocess.run([ROOT / "scripts/start-or-resume", "run"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "CONFIG.yaml" in done.stderr
    assert os.access(ROOT / "scripts/start-or-resume", os.X_OK)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pages_name_existing_files(page: Path) -> None:
    commands = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL))
    files = re.findall(r"(?:recipes|scripts)/[a-z./-]+", commands)
    assert len(files) >= 2
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert read_settings("train", [str(SETTINGS)])

"""recipes/droid/README.md, word for word: its commands run in sequence on a small dataset with
DROID's schema.

bash expands the commands with other values of the variables that the page defines; nothing else is
replaced. Those of `understudy` then run in this process; torchrun and hf run as programs. For
sbatch the settings are read, since `packages/understudy/tests/distributed/test_slurm.py` runs its
script on a SLURM.
"""

import ast
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

from huggingface_hub import constants

from support.clusters import kubernetes_pod, ray_worker, skypilot_host, started
from support.droid import CAMERAS, LENGTHS, episode_path, range_key, write_droid, write_ranges
from understudy import Catalog, EpisodeDataset
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import mesh_shape
from understudy.testing.docs import ROOT, SOURCES, code, expand, settings_of
from understudy_client import Contract, ContractWarning
from understudy_data.testing.hub import REPO, HubServer
from understudy_data.testing.servers import folder
from understudy_kit import load
from understudy_kit.cli import main

RECIPE = ROOT / "recipes/droid"
PAGE = (RECIPE / "README.md").read_text()
LONG = [episode for episode, length in enumerate(LENGTHS) if length >= 32]


def commands_of(variables: dict[str, str]) -> list[list[str]]:
    """Words of each command of the page, expanded by bash with the given variables."""
    return expand("".join(code(PAGE, "sh")), variables)


@pytest.mark.long
def test_recipe_runs_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = write_droid(tmp_path / "published")
    write_ranges(tmp_path / "keep_ranges_1_0_1.json", ranges)
    files = {
        path.lstrip("/"): data for path, data in folder(tmp_path / "published", "/success").items()
    }
    files["keep_ranges_1_0_1.json"] = (tmp_path / "keep_ranges_1_0_1.json").read_bytes()
    data = tmp_path / "data" / "droid"
    run = tmp_path / "runs" / "droid"
    data.parent.mkdir()
    variables = {
        "DATASET": f"hf://datasets/{REPO}/success",
        "RANGES_REPO": REPO,
        "RANGES_REVISION": "main",
    }
    variables |= {"DATA": str(data), "RUN": str(run), "MASTER_PORT": str(free_port())}
    variables |= {"NODES": "1", "GPUS": "1", "STEPS": "1", "BATCH": "4", "PORT": str(free_port())}
    released, flow, tiny = re.findall(r'POLICY="(--policy.*?)"', PAGE)
    assert "lerobot/pi05_base" in released
    variables["POLICY"] = flow
    commands = commands_of(variables)
    assert [" ".join(words[:2]) for words in commands if words[0] in ("understudy", "hf")] == [
        *("understudy edit", "hf download", "understudy check", "understudy ranges"),
        *("understudy tokenizer", "understudy validate", "understudy export"),
        *("understudy replay", "understudy serve"),
    ]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with HubServer(files) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files_at = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files_at)
        env = os.environ | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hub"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        env |= {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
        for words in commands:
            if words[:2] == ["understudy", "serve"]:
                serve_and_act(words, variables["PORT"])
            elif words[0] == "understudy":
                assert main.main(words[1:]) == 0, words
            elif words[0] in CLUSTERS:
                continue  # test_pasted_lines_train_at_the_rate_of_their_table
            elif words[0] == "sbatch":
                assert settings_of(words) == settings_of(
                    next(w for w in commands if w[0] == "torchrun")
                )
            else:
                program = (
                    "torch.distributed.run" if words[0] == "torchrun" else "huggingface_hub.cli.hf"
                )
                subprocess.run(
                    [sys.executable, "-m", program, *words[1:]], env=env, check=True, timeout=600
                )

    catalog = Catalog.open(data)
    assert catalog.episodes.lengths.tolist() == [LENGTHS[episode] for episode in LONG]
    names = catalog.episode_metadata()["episode_id"]
    assert [names[row] for row in range(len(LONG))] == [episode_path(episode) for episode in LONG]
    published = [
        [list(pair) for pair in ranges[range_key(episode_path(episode))]] for episode in LONG
    ]
    computed = json.loads((tmp_path / "data/droid-ranges/computed.json").read_text())
    assert list(computed.values()) == published, "the preset is the published rule"
    assert (
        json.loads((tmp_path / "data/droid-ranges/keep_ranges_1_0_1.json").read_text()).keys()
        > ranges.keys()
    )
    trained = load(TrainConfig, run / "config.yaml")
    [source] = trained.data.mixed()
    given = EpisodeDataset(data, keep_ranges=source.keep_ranges, keep_rule=source.keep_rule)
    want = [(row, start, stop) for row, own in enumerate(published) for start, stop in own]
    assert [tuple(segment) for segment in given.segments.tolist()] == want
    policy = json.loads((run / "policy/config.json").read_text())
    assert sorted(policy["cameras"]) == sorted(f"observation.image.{camera}" for camera in CAMERAS)
    assert (policy["action_dim"], policy["state_dim"], policy["chunk"]) == (8, 8, 16)
    contract = Contract.read_folder(run / "policy")
    assert contract is not None
    [robot] = contract.robots.values()
    assert " | ".join(catalog.tasks).count(" | ") > len(catalog.tasks) - 1
    assert not [task for task in robot.tasks if " | " in task]

    # The same commands for the other types, fresh and tiny, in this process: their launch differs
    # in nothing else.
    for kind in ("pi05", "world_action"):
        small = {
            "CONFIG": f"recipes/droid/{kind}.yaml",
            "POLICY": tiny.replace("runs/droid", str(run)),
        }
        variables |= small | {
            "RUN": str(tmp_path / "runs" / kind),
            "BATCH": "2" if kind == "pi05" else "8",
        }
        [launch] = [words for words in commands_of(variables) if words[0] == "torchrun"]
        assert main.main(launch[launch.index("train") :]) == 0
        assert (tmp_path / "runs" / kind / "policy/model.safetensors").is_file()
    monkeypatch.setenv("RUN", str(tmp_path / "runs/world_action"))
    capsys.readouterr()
    [look] = [block for block in code(PAGE, "python") if "metrics.jsonl" in block]
    exec(look, {})
    step, _, losses = capsys.readouterr().out.split(" ", 2)
    assert (int(step), set(ast.literal_eval(losses))) == (1, {"flow", "dynamics", "images"})


def test_recipe_meshes_fit_their_hosts() -> None:
    rows = re.findall(
        r"^\| (\d+) × (\d+) \| (\d+) × (\d+)[^|]*\| (\d+) \|$", PAGE, flags=re.MULTILINE
    )
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16]
    for nodes, gpus, replicas, shards, samples in rows:
        variables = {"NODES": nodes, "GPUS": gpus}
        read = [
            settings_of(words)
            for words in commands_of(variables)
            if words[0] in ("torchrun", "sbatch")
        ]
        assert read[0] == read[1]
        config = read[0]
        assert mesh_shape(config.mesh, int(nodes) * int(gpus)) == (int(replicas), int(shards))
        assert config.parallel.dp_replicate is None, (
            "a run could not continue with another number of hosts"
        )
        assert config.batch_size == int(samples) * int(nodes) * int(gpus)


def test_recipe_variants_are_settings() -> None:
    """Flags in the text of the page, and both settings files."""
    texts = re.findall(r"`(--data\.[^`]*)`", PAGE.replace("\n  ", " "))
    assert len(texts) >= 3
    for text in (text for text in texts if "$" not in text):
        main.read_settings("train", [str(RECIPE / "flow.yaml"), "--data.root", "d", *text.split()])
    released = re.findall(r'^ +POLICY="(--policy\.weights.*)"$', PAGE, flags=re.MULTILINE)
    for kind in ("pi05", "world_action"):
        main.read_settings(
            "train", [str(RECIPE / f"{kind}.yaml"), "--data.root", "d", *released[0].split()]
        )


def test_rates_of_the_world_action_model_follow_the_root_of_the_batch() -> None:
    """Up to the rate of cosmos-framework; hosts and samples per GPU multiply to the batch."""
    rows = re.findall(
        r"^\| ([\d,]+) \| (\S+) \| (\d+) to (\d+) \| (\d+) to (\d+) \|$", PAGE, flags=re.MULTILINE
    )
    assert len(rows) == 3
    for text, rate, few, many, most, least in rows:
        batch = int(text.replace(",", ""))
        assert float(rate) == pytest.approx(min(5e-5 * (batch / 256) ** 0.5, 2e-4))
        assert int(few) * 8 * int(most) == int(many) * 8 * int(least) == batch
    assert settings("STEPS=3000 BATCH=8192").batch_size * 3000 == pytest.approx(
        100_000 * 256, rel=0.05
    )


def settings(words: str) -> TrainConfig:
    """Settings of the launch on the page with the variables of a line of it."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"    {words}")]
    variables = dict(word.split("=", 1) for word in shlex.split(line))
    return settings_of(next(words for words in commands_of(variables) if words[0] == "torchrun"))


CLUSTERS = ("python", "sky", "kubectl")
PRINTER = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0")" "$@" >> "$LOG"
printf '%s\\0' >> "$LOG"
"""
QUEUE = """#!/usr/bin/env bash
while [ "${1#--}" != "$1" ]; do shift 2; done
SLURM_NNODES=$NODES SLURM_JOB_ID=7 SLURM_JOB_NODELIST=here SLURM_GPUS_ON_NODE=$GPUS exec bash "$@"
"""
SRUN = """#!/usr/bin/env bash
shift
SLURM_NODEID=0 exec "$@"
"""


def test_pasted_lines_train_at_the_rate_of_their_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks and the line for 8,192 samples as a person pastes them; programs print the
    arguments that arrive.
    """
    programs = tmp_path / "bin"
    log = tmp_path / "log"
    programs.mkdir()
    scripts = {
        "torchrun": PRINTER,
        "understudy": PRINTER,
        "sbatch": QUEUE,
        "srun": SRUN,
        "scontrol": PRINTER,
    }
    for name, text in {**scripts, **dict.fromkeys(CLUSTERS, PRINTER)}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    blocks = code(PAGE, "sh")
    [variables] = [block for block in blocks if "export CONFIG=" in block]
    launches = [block for block in blocks if block.startswith(("torchrun", "sbatch", "SETTINGS="))]
    assert len(launches) == 3
    [line] = re.findall(r"^    (STEPS=\d+ BATCH=8192 .*)$", PAGE, flags=re.MULTILINE)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "LOG": str(log), "HOME": str(tmp_path)}
    environment |= {"DATA": "/runs/droid", "RUN": str(tmp_path / "run")}
    script = "\n".join([variables, line, *launches])
    subprocess.run(["bash", "-euc", script], env=environment, cwd=ROOT, check=True, timeout=60)
    arrived = [
        entry.strip("\n").split("\n") for entry in log.read_text().split("\0") if entry.strip()
    ]
    found = {
        words[0]: words for words in arrived if "apply" not in words and words[0] != "scontrol"
    }
    assert found.keys() == {"torchrun", "understudy", *CLUSTERS}
    [apply] = [words for words in arrived if "apply" in words]
    assert (ROOT / apply[-1]).is_file()

    for program, place in (("kubectl", kubernetes_pod), ("sky", skypilot_host)):
        folder = tmp_path / program
        script, variables = place(found[program], 0, folder)
        found[program], _ = started(script, variables, folder / "host")
    trained, workers = ray_worker(found.pop("python"), monkeypatch)
    assert workers == 16 * 8
    configs = [trained, *(read_training(words) for words in found.values())]
    assert len(configs) == 5
    for config in configs:
        assert config.optim.lr == 2e-4
        assert (config.batch_size, config.steps, config.parallel.dp_shard) == (8192, 3000, 8)
        assert (config.data.root, config.policy.type) == ("/runs/droid", "flow")
        assert config.data.keep_ranges == "/runs/droid-ranges/keep_ranges_1_0_1.json"


def read_training(words: list[str]) -> TrainConfig:
    """Settings of the `understudy train` in a command."""
    _, flags = main.split_launch(words[words.index("train") + 1 :])
    config = main.read_settings("train", flags)
    assert isinstance(config, TrainConfig)
    return config


def serve_and_act(command: list[str], port: str) -> None:
    """Serve as the page does, in a process of its own, and run the page's client."""
    [client] = [block for block in code(PAGE, "python") if "RemotePolicy" in block]
    found: dict[str, Any] = {}
    with (
        subprocess.Popen([sys.executable, "-m", *command]) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PORT", port)
        try:
            # its images are black
            with warnings.catch_warnings(action="ignore", category=ContractWarning):
                exec(client, found)
        finally:
            server.terminate()
    assert found["joint_velocities"].shape == (7,)
    assert np.isfinite(found["action"]).all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

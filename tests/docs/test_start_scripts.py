"""Scripts that start or resume a run: which words of the first start reach a resume."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("script", ["start-or-resume", "slurm/train.sbatch"])
@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["--policy.type", "my.py:MINE", "--steps", "3"], ["--policy.type", "my.py:MINE"]),
        (["--policy.type=a b.py:MINE"], ["--policy.type=a b.py:MINE"]),
        (["--steps", "3", "--policy-code", "my.py"], ["--policy-code", "my.py"]),
        (["--policy-code=my.py", "--policy.type", "flow"], ["--policy-code=my.py"]),
        (["--policy.type", "pi05"], []),
        ([], []),
    ],
)
def test_a_resume_names_the_same_code(
    script: str, words: list[str], passed: list[str], tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "understudy").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "scontrol").write_text("#!/bin/sh\necho localhost\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "EXTRA_ARGS": ""}
    environment |= {
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": "a",
        "SLURM_JOB_ID": "7",
        "SLURM_NODEID": "0",
    }
    done = subprocess.run(
        ["bash", SCRIPTS / script, run, "c.yaml", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["resume", str(run), *passed, "--launch", "1"]

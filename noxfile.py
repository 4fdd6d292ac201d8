"""Sessions in environments of their own, with packages that the environment of `make test` does not
have.

nox -s lerobot    LeRobot and transformers from the package index, and the tests that need them
nox -s onnx       ONNX and its runtime
nox -s ray        Ray, the recipe that trains in its workers, and tools with `--ray`
nox -s exams      tests, doctors and readers of other projects; writes lab/journal/exams.md
"""

from pathlib import Path

import nox


def editable(**extras: str) -> list[str]:
    """Arguments that install the distributions, editable; `extras` are theirs by name, as
    data="torch,s3".
    """
    words = []
    for path in sorted(Path("packages").glob("*/pyproject.toml")):
        name = path.parent.name
        extra = extras.get(name.removeprefix("understudy-"), "")
        words += ["-e", f"packages/{name}" + (f"[{extra}]" if extra else "")]
    return words


nox.options.sessions = ["lerobot", "onnx", "ray"]  # `exams` runs code of others


@nox.session(python="3.12")
def lerobot(session: nox.Session) -> None:
    """Test their policies in our trainer, our loader in their trainers, and their robot client with
    our server.
    """
    session.install(
        "lerobot[dataset,training,diffusion,smolvla,async]==0.6.1",
        "transformers==5.5.4",
        *editable(),
        "pytest",
        "pytest-timeout",
    )
    session.install("hypothesis", "scipy", "huggingface_hub")
    session.env["HF_HUB_OFFLINE"] = "1"
    session.run(
        "pytest",
        "-rs",
        "packages/understudy-data/tests/integrations",
        "packages/understudy/tests/integrations",
        "packages/understudy-zoo/tests/lerobot",
        "packages/understudy-lerobot-service",
        *session.posargs,
    )


@nox.session(python="3.12")
def onnx(session: nox.Session) -> None:
    """Test graphs in the format of ONNX."""
    session.install(*editable(zoo="onnx"), "pytest", "pytest-timeout", "hypothesis", "scipy")
    tests = "packages/understudy-zoo/tests"
    session.run(
        "pytest",
        "-rs",
        f"{tests}/train/checkpoint/test_export_graph.py",
        f"{tests}/policies",
        *session.posargs,
    )


@nox.session(python="3.12")
def ray(session: nox.Session) -> None:
    """Test the recipe for Ray Train, and tools with `--ray`, on clusters of processes of this
    machine.
    """
    session.install(
        "ray[default,train]==2.60.0",
        *editable(data="ray"),
        "pytest",
        "pytest-timeout",
        "hypothesis",
    )
    session.env["OMP_NUM_THREADS"] = "1"
    session.run(
        "pytest",
        "-rs",
        "tests/docs/test_recipe_ray.py",
        "packages/understudy-tools/tests/test_parts_ray.py",
        *session.posargs,
    )


@nox.session(python="3.12")
def exams(session: nox.Session) -> None:
    """Run what others wrote on understudy; `nox -s exams -- NAME` runs one exam."""
    session.install(
        "lerobot[dataset,training,diffusion,smolvla,async]==0.6.1",
        "transformers==5.5.4",
        "lerobot-doctor==0.2.0",
        "lerobot-lancedb==0.3.1",
        "daft==0.7.26",
        "rerun-sdk",
        "grain==0.2.18",
        "torchdata==0.11.0",
        "dm-tree",
        "expecttest",
        "parameterized",
        "portpicker",
        "pyserial",  # LeRobot's robot client
        "pytest<9",  # marks on fixtures, as MosaicML Streaming has them
        "pytest-timeout",
        *editable(robot="demo"),
    )
    session.run("python", "scripts/exams.py", *session.posargs)

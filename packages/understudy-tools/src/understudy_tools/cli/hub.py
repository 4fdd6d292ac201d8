"""`understudy push` and `understudy pull`: policies, runs and datasets on the hub."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from understudy_base import DRAFT_SUFFIX, ConfigError, plural
from understudy_data import HubId
from understudy_kit import Ge, Positional

Kind = Literal["policy", "run", "dataset"]
_MARKS: dict[Kind, tuple[str, ...]] = {
    "run": ("config.yaml", "order.json", "checkpoints"),
    "dataset": ("meta/info.json",),
    "policy": ("config.json", "model.safetensors"),
}

_OF_THIS_MACHINE = ("wandb", "STOP")
"""Entries of a run with names of the user and of the machine, or for its process alone; no later
one needs them.
"""


def folder_kind(folder: Path) -> Kind | None:
    """Return the kind of a folder; None for a folder that is neither a policy nor a run nor a
    dataset.
    """
    for kind, names in _MARKS.items():
        if all((folder / name).exists() for name in names):
            return kind
    return None


def list_files(folder: Path, outer: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones and drafts.

    Those behind links are among them: videos may be on another disk.

    Args:
        folder: the folder.
        outer: folders that it is in, without links.

    Raises:
        ConfigError: a link leads nowhere, or to a folder that it is in.
    """
    resolved = folder.resolve()
    if resolved in outer:
        raise ConfigError(f"path: {folder}: links to the folder that it is in; remove this link")
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from list_files(Path(entry.path), outer | {resolved})
        elif entry.is_file() and not entry.name.endswith(DRAFT_SUFFIX):
            yield Path(entry.path)
        elif entry.is_symlink():
            raise ConfigError(
                f"path: {entry.path}: links to a file that is not there; restore it, or remove the "
                "link"
            )


def choose_checkpoint(checkpoints: Path, step: int | Literal["latest"]) -> Path:
    """Return the folder of a complete checkpoint of a run.

    Raises:
        ConfigError: there is none.
    """
    names = [path.name for path in checkpoints.glob("step-*")]
    steps = {int(name[5:]): name for name in names if name[5:].isdecimal()}
    chosen = max(steps, default=None) if step == "latest" else step
    if chosen not in steps:
        listed = ", ".join(map(str, sorted(steps))) or "none yet"
        raise ConfigError(f"checkpoint: {step} is not in {checkpoints}; there are: {listed}")
    return checkpoints / steps[chosen]


@dataclass(frozen=True)
class PushConfig:
    """Publish a policy, a run with one checkpoint, or a dataset on the hub, as one commit."""

    path: Positional[str] = ""
    """Folder of a policy, of a run or of a dataset."""
    to: str = ""
    """Repository: hf://OWNER/NAME for policies and runs, hf://datasets/OWNER/NAME for datasets. A
    missing one is made. The token comes from `hf auth login` or HF_TOKEN.
    """
    public: bool = False
    """Make a new repository public. An existing one stays as it is."""
    update: bool = False
    """Add a commit to a repository that holds files already. Its earlier files stay in its history.
    """
    checkpoint: Annotated[int, Ge(0)] | Literal["latest"] = "latest"
    """Of a run: the checkpoint to publish, by its step or `latest`. The policy of another choice:
    `understudy export RUN --checkpoint best`, and push RUN/export."""
    message: str = ""
    """Title of the commit; the default names the kind."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        errors = []
        if not self.path:
            errors.append(
                "path: required, the folder to publish: understudy push PATH --to hf://OWNER/NAME"
            )
        if self.repository() is None:
            errors.append(
                f"to: {self.to!r}: must be hf://OWNER/NAME, or hf://datasets/OWNER/NAME for a "
                "dataset"
            )
        return errors

    def repository(self) -> HubId | None:
        """Return the repository of `to`; None where it has another form."""
        return HubId.parse(self.to)


def push(config: PushConfig) -> None:
    """Publish the folder and print the commit.

    Raises:
        ConfigError: the folder is none of these kinds, the run has no such checkpoint, the kind of
            repository is another one, a file is damaged or not the one that was written, which no
            load accepts, or the hub refuses.
        OSError: a folder or a file in it cannot be read.
    """
    from understudy_data import push as upload

    folder = Path(config.path).expanduser().resolve()
    repository = config.repository()
    assert repository is not None
    kind = folder_kind(folder)
    if kind is None:
        problem = "there is no such folder"
        if folder.is_dir():
            problem = "holds no policy, run or dataset"
        if not folder.exists() and (near := HubId.near_path(str(folder))):
            problem += f"; did you mean {near}?"
        raise ConfigError(
            f"path: {folder}: {problem}; name the folder of one, such as RUN/policy, RUN or a "
            "dataset"
        )
    files = list(list_files(folder))
    tag = _check_dataset(folder) if kind == "dataset" else ""
    step = ""
    if kind == "run":
        left_out = {folder / name for name in ("checkpoints", *_OF_THIS_MACHINE)}
        files = [path for path in files if left_out.isdisjoint([path, *path.parents])]
        checkpoint = choose_checkpoint(folder / "checkpoints", config.checkpoint)
        # It is published as it is: its list of tensors is the file `.metadata`.
        files += [path for path in checkpoint.rglob("*") if path.is_file()]
        step = f" at step {int(checkpoint.name[5:])}"
    if (kind == "dataset") != (repository.kind == "dataset"):
        fitting_kind: Literal["dataset", "model"] = "dataset" if kind == "dataset" else "model"
        fits = HubId(repository.name, kind=fitting_kind)
        raise ConfigError(f"to: {repository}: {config.path} is a {kind}, and belongs to {fits}")
    commit = upload(
        folder,
        [path.relative_to(folder) for path in files],
        repository,
        message=config.message or f"Add a {kind}{step} of understudy",
        public=config.public,
        update=config.update,
        tag=tag,
    )
    print(f"{repository}@{commit}: {kind}{step}, {len(files)} files")


def _check_dataset(folder: Path) -> str:
    """Return the format of a dataset, the tag by which LeRobot finds it; warn of files that no
    episode names.

    Raises:
        ConfigError: files are missing, cannot be read or contradict the metadata: a recorder was
            killed, for example, or rows and videos may be those of different episodes.
    """
    from understudy_base import DatasetError
    from understudy_data import Catalog, FileCheck

    try:
        catalog = Catalog.open(folder)
        problems = [gap.line for gap in catalog.missing_files() or []]
        files = FileCheck(catalog)
        contradiction, irregular = files.unfinished()
        if contradiction:
            problems.append(contradiction)
        if not problems:
            rows = catalog.episodes.rows_of(catalog.episodes.ids)
            broken = files.broken_episodes(catalog.episodes.videos, (), rows)
            problems = [bad.line for bad in broken]
    except DatasetError as error:
        raise ConfigError(f"path: {error}") from error
    if problems:
        more = f"; and {plural(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
        fix = (
            f"mend it (understudy check {folder} names each fault and its remedy), or publish a "
            "copy with the sound "
        )
        fix += f"episodes: understudy edit {folder} COPY --skip-bad"
        raise ConfigError(f"path: {folder}: {problems[0]}{more}; {fix}")
    if irregular:
        warnings.warn(f"{folder}: {irregular}; all files are published", stacklevel=2)
    return catalog.version


@dataclass(frozen=True)
class PullConfig:
    """Fetch a policy, a run or a dataset from the hub into a new folder."""

    path: Positional[str] = ""
    """Repository: hf://OWNER/NAME, hf://datasets/OWNER/NAME, or either with @REVISION."""
    output_dir: str = ""
    """Folder to make; the default is NAME in the current folder. A stopped download continues with
    the same command.
    """

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        if not self.path:
            return ["path: required, a repository on the hub: understudy pull hf://OWNER/NAME"]
        if self.repository() is None:
            return [
                f"path: {self.path!r}: must be hf://OWNER/NAME, or hf://datasets/OWNER/NAME for a "
                "dataset"
            ]
        return []

    def repository(self) -> HubId | None:
        """Return the repository of `path`; None where it is none."""
        return HubId.parse(self.path) or HubId.of_model(self.path)


def pull(config: PullConfig) -> None:
    """Fetch the repository, and print its folder and the next command.

    Raises:
        ConfigError: the folder exists, or the hub refuses. OSError: the folder cannot be written.
    """
    from understudy_data import pull as download

    repository = config.repository()
    assert repository is not None
    target = Path(config.output_dir or repository.name.partition("/")[2]).expanduser().absolute()
    download(repository, target)
    kind = folder_kind(target)
    print(f"{target}: {kind or 'files'} of {repository}")
    if kind == "run":
        print(f"  understudy resume {target}")
    elif kind == "policy":
        print(f"  us.load_policy({str(target)!r})")
    elif kind == "dataset":
        print(f"  understudy check {target}")

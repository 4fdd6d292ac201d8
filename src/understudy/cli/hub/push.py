"""`understudy push PATH --to hf://OWNER/NAME`: publish a policy, a run or a dataset on the hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from understudy.config.declare import Ge, Positional
from understudy.hub.ids import HubId, parse_address


@dataclass(frozen=True)
class PushConfig:
    """Publish a policy, a run with one checkpoint, or a dataset on the hub, as one commit."""

    path: Positional[str] = ""
    """Folder of a policy, of a run or of a dataset."""
    to: str = ""
    """Repository: hf://OWNER/NAME for policies and runs, hf://datasets/OWNER/NAME for datasets. A missing one is made.
    The token comes from `hf auth login` or HF_TOKEN."""
    public: bool = False
    """Make a new repository public. An existing one stays as it is."""
    update: bool = False
    """Add a commit to a repository that holds files already. Its earlier files stay in its history."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Of a run: the checkpoint to publish, by its step, `latest` or `best`."""
    message: str = ""
    """Title of the commit; the default names the kind."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = (
            [] if self.path else ["path: required, the folder to publish: understudy push PATH --to hf://OWNER/NAME"]
        )
        if self.repository() is None:
            found.append(f"to: {self.to!r}: must be hf://OWNER/NAME, or hf://datasets/OWNER/NAME for a dataset")
        return found

    def repository(self) -> HubId | None:
        """Return the repository of `to`; None where it has another form."""
        return parse_address(self.to)


def push(config: PushConfig) -> None:
    """Publish the folder and print the commit.

    Raises:
        ConfigError: the folder is none of these kinds, the kind of repository is another one, or the hub refuses.
    """
    from understudy.cli.hub.kinds import read_content
    from understudy.contract.model_card import FILE, is_unchanged
    from understudy.errors import ConfigError
    from understudy.hub import upload

    folder, wanted = Path(config.path).expanduser().resolve(), config.repository()
    assert wanted is not None
    content = read_content(folder, config.checkpoint)
    if (content.kind == "dataset") != (wanted.kind == "dataset"):
        fits = HubId(wanted.name, kind="dataset" if content.kind == "dataset" else "model")
        raise ConfigError(f"to: {wanted}: {config.path} is a {content.kind}, and belongs to {fits}")
    step = f" at step {content.step}" if content.kind == "run" else ""
    message = config.message or f"Add a {content.kind}{step} of understudy"
    cards = [path for path in content.files if path.name == FILE and is_unchanged((folder / path).read_bytes())]
    commit = upload.push(
        folder,
        content.files,
        wanted,
        message=message,
        public=config.public,
        update=config.update,
        tag=content.tag,
        generated={path.as_posix(): is_unchanged for path in cards},
    )
    print(f"{wanted}@{commit}: {content.kind}{step}, {content.size} files")

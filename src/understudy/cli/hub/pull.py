"""`understudy pull hf://OWNER/NAME`: fetch a policy, a run or a dataset from the hub into a folder."""

from dataclasses import dataclass
from pathlib import Path

from understudy.config.declare import Positional
from understudy.hub.ids import HubId, model_id, parse_address


@dataclass(frozen=True)
class PullConfig:
    """Fetch a policy, a run or a dataset from the hub into a new folder."""

    path: Positional[str] = ""
    """Repository: hf://OWNER/NAME, hf://datasets/OWNER/NAME, or either with @REVISION."""
    output_dir: str = ""
    """Folder to make; the default is NAME in the current folder. A stopped download continues with the same command."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        if not self.path:
            return ["path: required, a repository on the hub: understudy pull hf://OWNER/NAME"]
        if self.repository() is None:
            return [f"path: {self.path!r}: must be hf://OWNER/NAME, or hf://datasets/OWNER/NAME for a dataset"]
        return []

    def repository(self) -> HubId | None:
        """Return the repository of `path`; None where it is none."""
        return parse_address(self.path) or model_id(self.path)


def pull(config: PullConfig) -> None:
    """Fetch the repository, and print its folder and the next command.

    Raises:
        ConfigError: the folder exists, or the hub refuses. OSError: the folder cannot be written.
    """
    from understudy.cli.hub.kinds import folder_kind
    from understudy.hub import download

    wanted = config.repository()
    assert wanted is not None
    target = Path(config.output_dir or wanted.name.partition("/")[2]).expanduser().absolute()
    download.pull(wanted, target)
    kind = folder_kind(target)
    print(f"{target}: {kind or 'files'} of {wanted}")
    if kind == "run":
        print(f"  understudy resume {target}")
    elif kind == "policy":
        print(f"  us.load_policy({str(target)!r})")
    elif kind == "dataset":
        print(f"  understudy check {target}")

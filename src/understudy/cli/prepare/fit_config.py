"""Settings that the commands of this folder share."""

from dataclasses import dataclass, field
from pathlib import Path

from understudy.config.train import TrainConfig
from understudy.policies.registry import PolicySettings, policy_type


@dataclass(frozen=True)
class FitConfig(TrainConfig):
    """Settings of a run, and a folder for the file that this run will need."""

    output_dir: str = ""
    """Folder to write, which a setting of the policy then names. Required; one that holds files is not overwritten."""
    policy: PolicySettings = field(default_factory=lambda: policy_type("pi05").settings())
    """Policy of the run."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        found = super().problems()
        folder = Path(self.output_dir)
        if not self.output_dir:
            found.append("output_dir: required, the folder to write")
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found.append(f"output_dir: {self.output_dir} exists; name another folder, or remove it")
        return found

"""The contract of a policy folder of any tool."""

from dataclasses import replace
from pathlib import Path

from understudy import StoredNormalization, read_object
from understudy_base import ConfigError
from understudy_client import Contract
from understudy_robot.contracts.groot import METADATA, STATISTICS, read_groot_contract
from understudy_robot.contracts.lerobot import read_lerobot_contract
from understudy_robot.contracts.openpi import read_openpi_contract
from understudy_robot.contracts.tensors import unfit, weights_digest


def read_policy_contract(folder: Path) -> Contract | None:
    """Read the contract of a policy of ours, LeRobot (0.6), openpi or GR00T (N1.5 to N1.7); None:
    it is none of them.

    Args:
        folder: the folder, or a run directory that holds one.

    Raises:
        ValueError: a file is damaged.
    """
    if not (folder / "config.json").is_file() and (folder / "policy" / "config.json").is_file():
        folder = folder / "policy"
    if (contract := Contract.read_folder(folder)) is not None:
        actual = weights_digest(folder)
        if contract.weights and actual and actual != contract.weights:
            contract = replace(
                contract,
                faults=(
                    *contract.faults,
                    unfit(f"weights {contract.weights[:12]}", f"weights {actual[:12]}"),
                ),
            )
        return contract
    config = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    try:
        if any((folder / name).is_file() for name in (METADATA, STATISTICS)):
            contract = read_groot_contract(folder)
        elif "input_features" in config:
            contract = read_lerobot_contract(folder)
        elif (
            StoredNormalization.openpi_files(folder)
            or (folder / "params").is_dir()
            or "action_horizon" in config
        ):
            contract = read_openpi_contract(folder)
        else:
            return None
        contract.check()
        return contract
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        fix = "download or export the policy again"
        raise ConfigError(
            f"{folder}: a file is not as its tool writes it: {error!r}; {fix}"
        ) from error

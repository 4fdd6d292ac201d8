"""`understudy contract A [B]`: the contract of a policy, dataset, robot, environment or server; two
compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from understudy_base import ConfigError, refuse_existing
from understudy_kit import Ge, Positional

if TYPE_CHECKING:
    from understudy_client import Contract, Mismatch

FOUND = 1
"""Exit code for a contradiction."""


@dataclass(frozen=True)
class ContractConfig:
    """Read a contract and list the facts that it leaves open, or list each contradiction between
    two contracts.
    """

    paths: Positional[tuple[str, ...]] = ()
    """One or two of: a policy folder of ours, LeRobot, openpi or GR00T; a run; a dataset; an
    environment; a server (`ws://HOST:PORT`); a file with a contract, as that of a robot.
    """
    head: str = ""
    """Norm head of the policy, where it has several."""
    images: Annotated[int, Ge(0)] = 8
    """Images of each camera of a dataset to compare with those of training; 0 reads none."""
    replan: Annotated[int, Ge(0)] = 0
    """Actions that the robot or environment executes of each prediction; 0: unknown."""
    output: str = ""
    """File to write: the contract of the first path."""
    overwrite: bool = False
    """Replace the file."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        if 1 <= len(self.paths) <= 2:
            return []
        return [
            "paths: required, one or two of a policy, dataset, robot, environment or server: "
            "understudy contract A B"
        ]


def contract(config: ContractConfig) -> int:
    """Print a contract or contradictions; returns 1 where there are any."""
    from understudy_client import compare_contracts
    from understudy_robot.contracts.in_motion import list_undecided

    if config.output:
        refuse_existing(config.output, "output", config.overwrite)
    contracts = [read_any(path, config) for path in config.paths]
    if config.output:
        contracts[0].write(Path(config.output), is_new=not config.overwrite)
    first = contracts[0]
    second = contracts[-1]
    if len(contracts) == 1:
        faults = list(first.faults)
        open_facts = first.unknowns()
        if config.json:
            print(
                json.dumps(
                    {
                        "contract": first.to_json(),
                        "faults": list(map(_plain, faults)),
                        "open": open_facts,
                    }
                )
            )
        else:
            _print([*_describe(first), *_list(faults), *_open(open_facts)])
        return FOUND if faults else 0
    try:
        faults = compare_contracts(first, second, config.head)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if second.kind == "policy" and first.kind != "policy":
        first, second = second, first
    pairs = first.pair_robots(second, config.head)
    undecided = []
    for trained, robot in pairs:
        if trained is not None:
            undecided.extend(list_undecided(trained, robot))
    if config.json:
        motion = [asdict(fact) for fact in undecided]
        for fact in motion:
            if isnan(fact["power"]):
                fact["power"] = None
        print(json.dumps({"mismatches": list(map(_plain, faults)), "in_motion": motion}))
    else:
        _print([*(_list(faults) or ["no contradiction"]), *map(str, undecided)])
    return FOUND if faults else 0


def read_any(path: str, config: ContractConfig) -> "Contract":
    """Read the contract of anything.

    Raises:
        ConfigError: it is nothing that has one, or a file is damaged.
    """
    from understudy import find_policy
    from understudy_client import Contract
    from understudy_robot.folder_contract import read_policy_contract

    try:
        if path.startswith(("ws://", "wss://")):
            return _of_server(path)
        if not Path(path).exists() and _is_env(path):
            from understudy_robot.envs.registry import open_env
            from understudy_robot.rollout.env_contract import env_contract

            return env_contract(open_env(path), replan=config.replan)
        if Path(path).is_file():
            return Contract.read(Path(path))
        if (Path(path) / "meta" / "info.json").is_file() or path.startswith("hf://datasets/"):
            from understudy import dataset_contract

            images = config.images if len(config.paths) > 1 else 0
            return dataset_contract(path, images)
        if (read := read_policy_contract(find_policy(path))) is not None:
            return read
    except ConfigError:
        raise
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise ConfigError(f"{path}: {error}") from error
    raise ConfigError(
        f"{path}: no policy, dataset, environment, server or file with a contract; name one of them"
    )


def _is_env(name: str) -> bool:
    from understudy_robot.envs.registry import ENVS, GYMNASIUM

    return name in ENVS or name.startswith(GYMNASIUM)


def _of_server(url: str) -> "Contract":
    """Return the contract of a server's handshake."""
    from understudy_client import Contract, RemotePolicy

    with RemotePolicy(url) as server:
        stored = server.metadata.get("contract")
    if not isinstance(stored, Mapping):
        raise ValueError(
            "the server sends no contract: its policy has none, or it is another one than "
            "`understudy serve`"
        )
    return Contract.from_json(stored)


def _print(lines: Sequence[str]) -> None:
    from understudy_client import printable

    print("\n".join(printable(line, 100_000) for line in lines))


def _plain(fault: "Mismatch") -> dict[str, str]:
    return {**vars(fault), "remedy": fault.remedy}


def _describe(contract: "Contract") -> list[str]:
    lines = [
        f"{contract.kind}: "
        f"{', '.join(map(str, contract.provenance.get('datasets', ()))) or 'no known data'}"
    ]
    for head, robot in contract.robots.items():
        state = robot.state.width if robot.state is not None else 0
        shape = (
            f"state {state}, action {robot.action.width}, {robot.chunk or 'unknown'} actions "
            "at once"
        )
        lines.append(
            f"{head or 'robot'}: {shape}; cameras {', '.join(robot.cameras) or 'none known'}"
        )
    return lines


def _list(faults: "Sequence[Mismatch]") -> list[str]:
    lines = []
    for fault in faults:
        where = f"{fault.key}: " if fault.key else ""
        remedy = "" if fault.fix.startswith(fault.remedy) else f"{fault.remedy}: "
        lines += [
            f"{where}{fault.kind}: {fault.trained} | {fault.came}",
            f"    {remedy}{fault.fix}",
        ]
    return lines


def _open(places: Sequence[str]) -> list[str]:
    return (
        [f"{len(places)} facts are unknown:", *(f"  {place}" for place in places)] if places else []
    )

"""Files of a policy that its settings name by a hub id: fetched into the cache of huggingface_hub before the run.

`policy.tokenizer`, `policy.fast`, `policy.weights` and `init_from` may hold `OWNER/NAME`, `OWNER/NAME@REVISION` or
`hf://OWNER/NAME`. The settings then hold the path of the fetched files, which contains the commit.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.hub.download import hub_errors
from understudy.hub.ids import hub_id, model_id
from understudy.optional_packages import require
from understudy.policies import policy_folder

_LOST = "cannot be fetched from the hub, and there is no such local path"


def with_local_files(config: TrainConfig) -> TrainConfig:
    """Fetch the files that the settings of the policy name by hub ids, and return the settings with their paths.

    Raises:
        ConfigError: a repository or a file of it cannot be fetched.
        MissingExtraError: the extra `hub` is not installed.
    """
    found: dict[str, Any] = {}
    for field, files in config.policy.FILES.items():
        if address := hub_id(str(getattr(config.policy, field))):
            found[field] = str(_fetch(field, *address, files))
    for field, patterns in config.policy.START_FILES.items():
        if address := hub_id(str(getattr(config.policy, field))):
            found[field] = str(_fetch_folder(field, *address, patterns))
    if model_id(config.init_from):
        config = replace(config, init_from=str(policy_folder.find(config.init_from)))
    return replace(config, policy=replace(config.policy, **found)) if found else config


def _fetch(field: str, name: str, revision: str | None, files: tuple[str, ...]) -> Path:
    """Fetch files of a repository; return the folder that holds them."""
    require("hub")
    from huggingface_hub import hf_hub_download

    where = f"policy.{field}: {name}" + (f"@{revision}" if revision else "")
    paths = []
    for file in files:
        with hub_errors(where, f"{file} {_LOST}"):
            paths.append(Path(hf_hub_download(name, file, revision=revision)))
    if len(folders := {path.parent for path in paths}) != 1:
        raise ConfigError(f"{where}: its files come from different commits; name one: {name}@COMMIT")
    return folders.pop()


def _fetch_folder(field: str, name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """Fetch the files of a repository that fit one of `patterns`; return their folder, whose name is the commit."""
    require("hub")
    from huggingface_hub import snapshot_download

    where = f"policy.{field}: {name}" + (f"@{revision}" if revision else "")
    with hub_errors(where, _LOST):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))

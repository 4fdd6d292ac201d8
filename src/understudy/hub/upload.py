"""A folder as one commit of a repository on the hub: all of its files, or none of them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from understudy.errors import ConfigError
from understudy.hub.download import hub_errors
from understudy.hub.ids import HubId
from understudy.optional_packages import require

logger = logging.getLogger(__name__)

_UNCLAIMED = {".gitattributes", "README.md"}
"""Files that the hub makes itself in a new repository."""


def push(
    folder: Path,
    files: Sequence[Path],
    wanted: HubId,
    *,
    message: str,
    public: bool = False,
    update: bool = False,
    tag: str = "",
) -> str:
    """Publish files of a folder as one commit on the main branch; a missing repository is made.

    Args:
        folder: the folder.
        files: paths to publish, relative to it.
        wanted: the repository.
        message: title of the commit.
        public: whether a new repository is public.
        update: whether the repository may hold files already. They stay in its history.
        tag: tag of the commit; an older tag of this name moves to it. "" for none.

    Returns:
        The commit.

    Raises:
        ConfigError: the repository holds files and `update` is False, or the hub refuses.
        MissingExtraError: the extra `hub` is not installed.
    """
    require("hub")
    from huggingface_hub import CommitOperationAdd, HfApi

    if wanted.revision:
        raise ConfigError(f"{wanted}: files are published on the main branch; leave out @{wanted.revision}")
    api = HfApi()
    with hub_errors(str(wanted), "cannot be published"):
        api.create_repo(wanted.name, repo_type=wanted.kind, private=not public, exist_ok=True)
        there = set(api.list_repo_files(wanted.name, repo_type=wanted.kind)) - _UNCLAIMED
        if there and not update:
            raise ConfigError(
                f"{wanted}: holds {len(there)} files, such as {min(there)}; --update adds a commit, and earlier files "
                "stay in its history"
            )
        add = [CommitOperationAdd(str(path.as_posix()), str(folder / path)) for path in files]
        done = api.create_commit(wanted.name, add, commit_message=message, repo_type=wanted.kind)
        if tag:
            if any(each.name == tag for each in api.list_repo_refs(wanted.name, repo_type=wanted.kind).tags):
                api.delete_tag(wanted.name, tag=tag, repo_type=wanted.kind)
            api.create_tag(wanted.name, tag=tag, revision=done.oid, repo_type=wanted.kind)
    return str(done.oid)

"""A folder as one commit of a repository on the hub: all of its files, or none of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import ConfigError
from understudy.hub.download import hub_errors
from understudy.hub.ids import HubId
from understudy.optional_packages import require

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

_UNCLAIMED = {".gitattributes", "README.md"}
"""Files that the hub makes itself in a new repository."""

Replaceable = Callable[[bytes], bool]


def push(
    folder: Path,
    files: Sequence[Path],
    repo: HubId,
    *,
    message: str,
    public: bool = False,
    update: bool = False,
    tag: str = "",
    generated: Mapping[str, Replaceable] | None = None,
) -> str:
    """Publish files of a folder as one commit on the main branch; a missing repository is made.

    A folder that is published, such as `meta`, is then as here: its other files leave the branch, and stay in the
    history. Other files of the repository stay.

    Args:
        folder: the folder.
        files: paths to publish, relative to it.
        repo: the repository.
        message: title of the commit.
        public: whether a new repository is public.
        update: whether the repository may hold files already. They stay in its history.
        tag: tag of the commit; an older tag of this name moves to it. "" for none.
        generated: files that no user wrote -> whether a content of theirs is also of that kind. If the repository's
            content is not, it was edited, and stays.

    Returns:
        The commit.

    Raises:
        ConfigError: the repository holds files and `update` is False, or the hub refuses.
        MissingExtraError: the extra `hub` is not installed.
    """
    require("hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    if repo.revision:
        raise ConfigError(f"{repo}: files are published on the main branch; leave out @{repo.revision}")
    api, names = HfApi(), {path.as_posix() for path in files}
    with hub_errors(str(repo), "cannot be published"):
        api.create_repo(repo.name, repo_type=repo.kind, private=not public, exist_ok=True)
        there = set(api.list_repo_files(repo.name, repo_type=repo.kind))
        if not update:
            _check_unclaimed(repo, there, names - set(generated or ()))
        edited = {name for name, ours in (generated or {}).items() if name in there and not ours(_read(repo, name))}
        for name in sorted(edited):
            logger.warning("%s: %s was edited there, and is left as it is", repo, name)
        folders = {name.partition("/")[0] for name in names if "/" in name}
        gone = sorted(name for name in there - names if "/" in name and name.partition("/")[0] in folders)
        if gone:
            logger.info("%s: %d files of earlier commits leave the branch, such as %s", repo, len(gone), gone[0])
        operations = [
            *(CommitOperationAdd(name, str(folder / name)) for name in sorted(names - edited)),
            *(CommitOperationDelete(name) for name in gone),
        ]
        done = api.create_commit(repo.name, operations, commit_message=message, repo_type=repo.kind)
        if tag:
            _move_tag(api, repo, tag, done.oid)
    return str(done.oid)


def _move_tag(api: "HfApi", repo: HubId, tag: str, commit: str) -> None:
    if any(ref.name == tag for ref in api.list_repo_refs(repo.name, repo_type=repo.kind).tags):
        api.delete_tag(repo.name, tag=tag, repo_type=repo.kind)
    api.create_tag(repo.name, tag=tag, revision=commit, repo_type=repo.kind)


def _check_unclaimed(repo: HubId, there: set[str], written: set[str]) -> None:
    """Raise ConfigError where the repository holds files of another commit, or another README of a user."""
    if claimed := there - _UNCLAIMED:
        raise ConfigError(
            f"{repo}: holds {len(claimed)} files, such as {min(claimed)}; --update adds a commit, and earlier files "
            "stay in its history"
        )
    if (name := "README.md") in written & there:
        raise ConfigError(f"{repo}: has another {name}; --update replaces it, and it stays in the history")


def _read(repo: HubId, name: str) -> bytes:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo.name, name, repo_type=repo.kind)).read_bytes()

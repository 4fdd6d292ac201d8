"""Files of a folder as one commit of a repository on the hub: all of them, or none."""

import logging
from collections.abc import Sequence
from pathlib import Path

from understudy_base import ConfigError, require
from understudy_data import checksums
from understudy_data.hub.cards import FILE, is_unchanged
from understudy_data.hub.download import hub_errors
from understudy_data.hub.ids import HubId

logger = logging.getLogger("understudy.hub.upload")


def push(
    folder: Path,
    files: Sequence[Path],
    repo: HubId,
    *,
    message: str,
    public: bool = False,
    update: bool = False,
    tag: str = "",
) -> str:
    """Publish files of a folder on the main branch; a missing repository is made.

    A folder that is published, such as `meta`, is then as here: its other files leave the branch,
    and stay in the history. Other files of the repository stay. So does a model card that was
    edited there, unless that of the folder was edited, too.

    Args:
        folder: the folder.
        files: paths to publish, relative to it.
        repo: the repository.
        message: title of the commit.
        public: whether a new repository is public.
        update: whether the repository may hold files already. They stay in its history.
        tag: tag of the commit; an older tag of this name moves to it. "" for none.

    Returns:
        The commit.

    Raises:
        ConfigError: a file is not the one that was written (`checksums.py`), the repository holds
            files and `update` is False, or the hub refuses.
        MissingExtraError: the extra `hub` is not installed.
    """
    try:
        for path in files:
            if path.name == checksums.FILE:
                checksums.check_checksums((folder / path).parent)
    except checksums.ChecksumError as error:
        raise ConfigError(f"path: {error}") from error
    require("hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download

    if repo.revision:
        raise ConfigError(
            f"{repo}: files are published on the main branch; leave out @{repo.revision}"
        )
    api = HfApi()
    place = {"repo_id": repo.name, "repo_type": repo.kind}
    names = {path.as_posix() for path in files}
    with hub_errors(str(repo), "cannot be published"):
        api.create_repo(**place, private=not public, exist_ok=True)
        there = set(api.list_repo_files(**place))
        cards = [name for name in sorted(names & there) if Path(name).name == FILE]
        for name in cards:
            is_ours = is_unchanged((folder / name).read_bytes())
            if is_ours and not is_unchanged(
                Path(hf_hub_download(filename=name, **place)).read_bytes()
            ):
                logger.warning("%s: %s was edited there, and is left as it is", repo, name)
                names.remove(name)
                there.remove(name)
        # The hub itself writes .gitattributes, and README.md into a new repository.
        taken = there - {".gitattributes", *({FILE} - names)}
        if taken and not update:
            raise ConfigError(
                f"{repo}: holds {len(taken)} files, such as {min(taken)}; --update adds a commit, "
                "and earlier files stay in its history"
            )
        folders = {name.partition("/")[0] for name in names if "/" in name}
        gone = {name for name in there - names if "/" in name and name.partition("/")[0] in folders}
        operations = [CommitOperationAdd(name, str(folder / name)) for name in sorted(names)]
        operations += [CommitOperationDelete(name) for name in sorted(gone)]
        commit = api.create_commit(operations=operations, commit_message=message, **place)
        if tag:
            if any(ref.name == tag for ref in api.list_repo_refs(**place).tags):
                api.delete_tag(tag=tag, **place)
            api.create_tag(tag=tag, revision=commit.oid, **place)
    return str(commit.oid)

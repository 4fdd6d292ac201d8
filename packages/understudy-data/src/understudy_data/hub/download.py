"""A repository of the hub as a folder: in the cache of huggingface_hub, or in a separate folder.

huggingface_hub supplies the token (`hf auth login`, or HF_TOKEN). No message of this module has it.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

from understudy_base import ConfigError, hub_remedy, require, summarize, sync, write_text
from understudy_data.checksums import FILE, ChecksumError, check_checksums
from understudy_data.hub.ids import SCHEME, HubId

ORIGIN = ".understudy-hub.json"
"""File of a pulled folder: the id and the commit that it was fetched from."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
"""Patterns of files that may execute code when they are read; a policy needs none of them."""
_OUTSIDE = ("/*", "..", "../*", "*/../*", "*/..", "*\\*", "?:*")
"""Patterns of names that leave the folder into which they are fetched. Not every huggingface_hub
refuses them.
"""
_CHECKPOINTS = "checkpoints/*"  # of a run: several times as large as its policy
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PART = ".understudy-pull"

logger = logging.getLogger("understudy.hub.download")


@dataclass(frozen=True)
class HubRepo(HubId):
    """A repository on the hub, with its files."""

    SCHEME: ClassVar[str] = SCHEME
    """Start of its address."""

    def fetch(self) -> Path:
        """Fetch a model repository into the cache of huggingface_hub (`fetch_model`); return the
        folder there.

        Raises:
            ConfigError: it cannot be fetched. MissingExtraError: the extra `hub` is not installed.
                OSError: the cache cannot be written.
        """
        return fetch_model(self)

    def fetch_files(self, patterns: Sequence[str], use: str, required: bool) -> Path:
        """Fetch the files that fit one of `patterns`; return their folder, whose name is the
        commit.

        Args:
            patterns: as of fnmatch; names of files where they are `required`.
            use: what the files are for, in messages.
            required: whether each of the files must be there.

        Raises:
            ConfigError: the repository, or a required file of it, cannot be fetched.
            MissingExtraError: the extra `hub` is not installed.
        """
        require("hub")
        from huggingface_hub import snapshot_download

        where = f"{use}: {self.name}"
        if self.revision:
            where += f"@{self.revision}"
        lost = "cannot be fetched from the hub, and there is no such local path"
        problem = f"{patterns[0]} {lost}" if required else lost
        with hub_errors(where, problem):
            folder = Path(
                snapshot_download(self.name, revision=self.revision, allow_patterns=list(patterns))
            )
        required_files = patterns if required else ()
        for file in required_files:
            if not (folder / file).exists():
                raise ConfigError(f"{where}: {file} {lost}")
        return folder

    def pull(self, target: Path) -> Path:
        """Fetch all files into a new folder (`pull`), and return it.

        Raises:
            ConfigError: `target` exists and is another folder, it cannot be fetched, or a file is
                not the one that was written.
            MissingExtraError: the extra `hub` is not installed. OSError: the disk cannot be
                written.
        """
        return pull(self, target)


def fetch_model(repo: HubId) -> Path:
    """Fetch a model repository into the cache of huggingface_hub, without pickles and checkpoints
    of runs.

    Files whose names leave the folder are left out, too.

    Returns:
        The folder in the cache. Its name is the commit.

    Raises:
        ConfigError: it cannot be fetched. MissingExtraError: the extra `hub` is not installed.
            OSError: the cache cannot be written.
    """
    require("hub")
    from huggingface_hub import snapshot_download

    # it would take a backslash for a slash
    outside = [pattern for pattern in _OUTSIDE if "\\" not in pattern]
    left_out = [*PICKLES, *outside, _CHECKPOINTS]
    with hub_errors(str(repo), "cannot be fetched from the hub"):
        return Path(snapshot_download(repo.name, revision=repo.revision, ignore_patterns=left_out))


def pull(repo: HubId, target: Path) -> Path:
    """Fetch all files of a repository into a new folder; a stopped download continues with the next
    call.

    Files come into a hidden folder next to `target`, which a rename turns into `target`. A folder
    that an earlier call fetched from this repository is returned as it is.

    Returns:
        `target`.

    Raises:
        ConfigError: `target` exists and is another folder, it cannot be fetched, or a file is not
            the one that was written (`checksums.py`).
        MissingExtraError: the extra `hub` is not installed. OSError: the disk cannot be written.
    """
    if is_origin(target, repo):
        logger.info("%s: was fetched from %s before, and is used as it is", target, repo)
        return target
    _check_absent(target, repo)
    require("hub")
    from huggingface_hub import HfApi, snapshot_download

    with hub_errors(str(repo), "cannot be found on the hub"):
        info = HfApi().repo_info(repo.name, revision=repo.revision, repo_type=repo.kind)
    _check_names(repo, [file.rfilename for file in info.siblings])
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{_PART}")
    with _locked(part, target):
        if is_origin(target, repo):  # by a process that was faster
            return target
        _check_absent(target, repo)
        if (part / ORIGIN).is_file() and not is_origin(part, repo):
            shutil.rmtree(part)  # ours alone: the rest of another repository
            part.mkdir()
        write_text(part / ORIGIN, json.dumps({"id": str(repo), "commit": info.sha}) + "\n")
        with hub_errors(str(repo), "cannot be fetched from the hub"):
            snapshot_download(repo.name, revision=info.sha, repo_type=repo.kind, local_dir=part)
        _remove_others(part, {file.rfilename for file in info.siblings})
        _check_sums(part, repo)
        # the state of the download
        shutil.rmtree(part / ".cache" / "huggingface", ignore_errors=True)
        if (part / ".cache").is_dir() and not any((part / ".cache").iterdir()):
            (part / ".cache").rmdir()
        _check_absent(target, repo)
        for folder, _, names in os.walk(part, topdown=False):
            for name in (*names, ""):
                sync(Path(folder, name))
        part.rename(target)
        sync(target.parent)
    return target


def is_origin(folder: Path, repo: HubId) -> bool:
    """Return whether `pull` fetched a folder from this repository."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        return bool(origin["id"] == str(repo))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_absent(target: Path, repo: HubId) -> None:
    if os.path.lexists(target):
        raise ConfigError(
            f"output_dir: {target}: exists, was not fetched from {repo}, and is not replaced; name "
            f"a folder that does not exist yet: understudy pull {repo} --output-dir FOLDER"
        )


def _check_names(repo: HubId, names: Iterable[str]) -> None:
    """Refuse names that leave the folder into which they are fetched.

    Raises:
        ConfigError: names the first one.
    """
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in _OUTSIDE):
            raise ConfigError(
                f"{repo}: holds a file named {name!r}, which is outside its folder; nothing is "
                "fetched"
            )


def _remove_others(part: Path, names: set[str]) -> None:
    """Remove files of a draft that a stopped download of an earlier commit left, and this commit
    has not.
    """
    for path in part.rglob("*"):
        file = path.relative_to(part)
        if (
            path.is_file()
            and file.parts[:2] != (".cache", "huggingface")
            and file.as_posix() not in {*names, ORIGIN}
        ):
            path.unlink()


def _check_sums(part: Path, repo: HubId) -> None:
    """Compare the files of a draft with their checksums; a wrong one is removed, so that the next
    call fetches it.
    """
    try:
        for sums in part.rglob(FILE):
            check_checksums(sums.parent)
    except ChecksumError as error:
        error.path.unlink(missing_ok=True)
        raise ConfigError(
            f"{repo}: {error}; if a second pull ends so, the repository itself has this file"
        ) from error


@contextmanager
def _locked(part: Path, target: Path) -> Iterator[None]:
    """Hold the lock of a draft; the processes of one run wait for the first of them."""
    lock = os.open(part.with_name(f"{part.name}-lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s: another process fetches it; waiting", target)
            fcntl.flock(lock, fcntl.LOCK_EX)
        part.mkdir(exist_ok=True)
        yield
        if target.exists():
            part.with_name(f"{part.name}-lock").unlink(missing_ok=True)
    finally:
        if part.is_dir() and not any(part.iterdir()):
            part.rmdir()
        os.close(lock)


@contextmanager
def hub_errors(where: str, failure: str) -> Iterator[None]:
    """Turn any error of huggingface_hub inside the block into a ConfigError without the token.

    Errors of this machine's disk stay OSErrors.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # each release of huggingface_hub raises its own
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _FULL):
            raise
        text = summarize(error)
        from huggingface_hub import get_token

        token = get_token()
        text = text.replace(token, "***") if token else text
        raise ConfigError(
            f"{where}: {failure} ({text}); {hub_remedy(error)}"
        ) from None  # an inner error may have the token

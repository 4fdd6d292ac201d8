"""All ranks read one version of their datasets, and play one order, or stop by name.

Each rank opens its datasets itself. If a publication or another replacement lies between two
openings, the ranks have other orders, and share samples. So the first rank says what it has read,
and the others compare:

    with a process group    in the group's store: nobody waits, and no collective is needed
    without one             in a file of the host's cache, for loaders with the same settings in
                            other processes

Of a publication (`edit/publish.py`) the later ranks read the one that the first rank reads. Without
a process group a start is known by its age: a rank that started and ended belongs to it for an
hour.
"""

import hashlib
import json
import logging
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from understudy_base import ConfigError, absolute_path, split_view, write_text
from understudy_data.order import Order
from understudy_data.order_file import lengths_digest
from understudy_data.storage import locks
from understudy_data.storage.dataset_version import publication_of
from understudy_data.storage.remote_options import default_cache_folder

logger = logging.getLogger("understudy.load.same_version")

_STARTING = 3600.0  # seconds in which a rank that has ended still belongs to a start
# that may differ between ranks
_OWN = {"rank", "num_threads", "position", "preprocess", "augment", "journal"}
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
)
_KEPT = 7 * 86400.0  # seconds after which the file of a start is removed
_made: Counter[tuple[str, int]] = Counter()  # loaders of this process, by settings and rank


class Board(Protocol):
    """What the first rank has read."""

    def first(self, name: str, value: str) -> str:
        """Return the value of the first rank, which is `value` if none was there."""


class _NoBoard:
    def first(self, name: str, value: str) -> str:
        return value


@dataclass
class _GroupBoard:
    """In the store of the default process group."""

    store: Any
    key: str

    def first(self, name: str, value: str) -> str:
        return bytes(self.store.compare_set(f"understudy/{self.key}/{name}", "", value)).decode()


@dataclass
class _FileBoard:
    """In a file of the host's cache: rank -> its start, process, time and values."""

    path: Path
    rank: int
    values: dict[str, str] = field(default_factory=dict)
    start: str = ""

    def first(self, name: str, value: str) -> str:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_old(self.path.parent)
            with locks.hold(f"{self.path}.lock", wait=10.0):
                return self._first(name, value)
        except (OSError, ValueError):  # without a cache folder nothing is compared
            return value

    def _first(self, name: str, value: str) -> str:
        try:
            ranks = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            ranks = {}
        other = self._other(ranks)
        theirs = str(other["values"].get(name, value)) if other else value
        if name == "order" and other is not None and not _is_alive(other):
            theirs = value  # it may have ended long ago
        if not self.start:
            self.start = str(other["start"]) if other else secrets.token_hex(8)
        self.values[name] = theirs
        ranks[str(self.rank)] = {
            "start": self.start,
            "values": self.values,
            "time": time.time(),
            **_process(),
        }
        write_text(self.path, json.dumps(ranks), durable=False)
        return theirs

    def _other(self, ranks: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The latest entry of another rank, in another process, of the start that this rank belongs
        to.
        """
        mine = ranks.get(str(self.rank), {}).get("start")
        entries = list[Mapping[str, Any]]()
        for rank, entry in ranks.items():
            if rank == str(self.rank) or (entry["pid"], entry["host"]) == (
                os.getpid(),
                socket.gethostname(),
            ):
                continue
            is_starting = time.time() - entry["time"] < _STARTING and entry["start"] != mine
            if self.start:
                is_starting = entry["start"] == self.start
            if _is_alive(entry) or is_starting:
                entries.append(entry)
        return max(entries, key=lambda entry: float(entry["time"]), default=None)


def _remove_old(folder: Path) -> None:
    for path in folder.glob("*.json*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT:
                path.unlink()


def _process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "began": _began(os.getpid())}


def _is_alive(entry: Mapping[str, Any]) -> bool:
    """Return whether the process of an entry runs; one of another host is only known by its
    time.
    """
    if entry["host"] != socket.gethostname():
        return bool(time.time() - entry["time"] < _STARTING)
    try:
        os.kill(entry["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return bool(_began(entry["pid"]) == entry["began"])


def _began(pid: int) -> str:
    """Start of a process in ticks since the boot; "" where it is not known."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def find_board(sources: Sequence[Any], options: Mapping[str, Any]) -> Board:
    """Return the place in which ranks compare the loaders of these arguments.

    Args:
        sources: datasets, as a caller gave them.
        options: arguments of the loader, with `rank` and `world_size`.
    """
    if options.get("world_size", 1) == 1:
        return _NoBoard()
    plain = {
        name: repr(value)
        for name, value in options.items()
        if name not in _OWN and not callable(value)
    }
    if "order" in plain:
        plain["order"] = options["order"].spec.fingerprint if options["order"] is not None else ""
    names = [_place(source) for source in sources]
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (options["rank"], options["world_size"]):
            return _NoBoard()
        # folders may differ between hosts
        names = [name.rstrip("/").rpartition("/")[2] for name in names]
        key = _numbered(
            _hash([names, sorted(plain), plain.get("batch_size"), plain.get("seed")]),
            options["rank"],
        )
        with suppress(Exception):
            # its other ranks do not exist, and its store holds nothing
            if dist.get_backend() == "fake":
                return _NoBoard()
        with suppress(Exception):  # a backend without a store
            return _GroupBoard(dist.distributed_c10d._get_default_store(), key)
        return _NoBoard()
    launch = [os.environ.get(name, "") for name in _LAUNCH]
    key = _numbered(_hash([names, sorted(plain.items()), launch, os.getuid()]), options["rank"])
    return _FileBoard(Path(default_cache_folder(), "ranks", f"{key}.json"), int(options["rank"]))


def _numbered(key: str, rank: int) -> str:
    """Return the key with the number of loaders of this process that have it: each is compared with
    its like.
    """
    _made[key, rank] += 1
    return f"{key}-{_made[key, rank]}"


def _place(source: Any) -> str:
    """Address of a dataset: a path, or one that is open, perhaps of another library."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path if "://" in path else absolute_path(path)
    catalog = getattr(source, "catalog", source)
    return str(
        getattr(catalog, "root", "") or getattr(source, "name", "") or type(source).__qualname__
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def agree_on_publications(sources: Sequence[Any], board: Board) -> list[Any]:
    """Return the sources with the address of the first rank's publication where a later one is
    there now.
    """
    mine = [_publication(source) for source in sources]
    if not any(mine):
        return list(sources)
    theirs = json.loads(board.first("publications", json.dumps(mine)))
    agreed = list(sources)
    for number, (latest, chosen) in enumerate(zip(mine, theirs)):
        if chosen and latest and chosen != latest:
            address, view = split_view(os.fspath(sources[number]))
            agreed[number] = f"{address.rstrip('/')}@{chosen}{view}"
            logger.warning(
                "%s: another rank reads publication %s, so this one does, too; now there is %s",
                address,
                chosen,
                latest,
            )
    return agreed


def _publication(source: Any) -> str:
    """Number of the publication at a path that names the latest one; "" for any other source."""
    if not isinstance(source, str | os.PathLike) or "://" in os.fspath(source):
        return ""
    path = absolute_path(split_view(os.fspath(source))[0])
    return os.path.basename(publication_of(path)) if os.path.islink(path) else ""


def check_same(order: Order, datasets: Sequence[Any], board: Board) -> None:
    """Compare order and datasets with those of the first rank.

    Raises:
        ConfigError: they are others; names each dataset that differs.
    """
    catalogs = []
    for data in datasets:
        catalog = getattr(data, "catalog", None)
        if catalog is not None and not catalog.files.is_compared:
            catalogs.append(catalog)
    facts = {
        catalog.name: [lengths_digest(catalog), catalog.files.shared_version]
        for catalog in catalogs
    }
    mine = {"order": order.spec.fingerprint, "datasets": facts}
    theirs = json.loads(board.first("order", json.dumps(mine)))
    if theirs == mine:
        return
    others = [
        catalog
        for catalog in catalogs
        if theirs["datasets"].get(catalog.name) != facts[catalog.name]
    ]
    if not others:
        problem = (
            "another rank of this loader plays another order of the same data, so ranks "
            "would share samples"
        )
        raise ConfigError(f"{problem}: give all ranks the same settings and memory, or one order=")
    files = others[0].files
    fix = files.version_address or "nothing may write to it while ranks start"
    raise ConfigError(
        f"another rank of this loader reads another version of {files.root}, so ranks would share "
        f"samples: this one reads {files.version_read or 'other files'}; give all ranks one "
        f"version ({fix}), and start all again"
    )

"""`Catalogs`: the metadata of many datasets, opened together."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from understudy_base import DataAccessError
from understudy_data.datasets.format.catalog import Catalog, MetaTables, Opening
from understudy_data.storage.mapped_tables import Member, are_many, first_key, once_per_group
from understudy_data.storage.remote_options import RemoteOptions

Place = tuple[str, ...]
"""Key of a dataset: its address and layout."""


class Catalogs:
    """Datasets that are opened together, each once: `start` all, `read_tables`, `open` each.

    Args:
        remote: how to read datasets on other machines.
    """

    def __init__(self, remote: RemoteOptions | None = None) -> None:
        self._remote = remote
        self._started = dict[Place, Opening]()
        self._opened = dict[Place, Catalog]()

    def start(self, address: str, **layout: str) -> Place:
        """Read the info.json of a dataset, unless it was started before.

        Its listings of folders are kept until they are dropped (`Files.drop_listings`).

        Args:
            address: of the dataset, without a view.
            layout: arguments of `Catalog.open`; "" is the default of each.

        Returns:
            The key for `open`.

        Raises:
            DatasetError: as `Catalog.open`.
        """
        place = address, *layout.values()
        if place not in self._started:
            given = {name: text or None for name, text in layout.items()}
            opening = Opening(address, self._remote, **given)
            opening.files.keep_listings()
            self._started[place] = opening
        return place

    def read_tables(self) -> None:
        """Read the tables of many small local datasets at once (`read_tables_of_many`)."""
        read_tables_of_many(list(self._started.values()))

    def open(self, place: Place) -> Catalog:
        """Return the catalog of a started dataset. Raises DatasetError: as `Catalog.open`."""
        if place not in self._opened:
            self._opened[place] = self._started[place].finish()
        return self._opened[place]


_SMALL = 1 << 20
"""Most bytes of the tables of `meta/` of a dataset whose content is kept with that of others."""


def read_tables_of_many(openings: Sequence[Opening]) -> None:
    """Read the tables of many small local datasets; their content is kept in the cache of the host.

    Parsing the tables of thousands of datasets takes longer than all else of opening them. The
    content is found by the size, times and inode of each file (`mapped_tables.once_per_group`). A
    dataset whose tables cannot be read stays without them.
    """
    members: list[Member[MetaTables]] = []
    small: list[Opening] = []
    if not are_many(len(openings)):
        return
    for opening in openings:
        with suppress(DataAccessError):  # which `finish` raises
            if opening.files.is_local and (member := _small_member(opening)) is not None:
                members.append(member)
                small.append(opening)
    if are_many(len(small)):
        for number, tables in once_per_group(members, small[0].files.cache, mapped=False):
            small[number].tables = tables


def _small_member(opening: Opening) -> Member[MetaTables] | None:
    """Member of a dataset with small tables; None for another one."""
    first, size = opening.inputs()

    def again() -> str:
        try:
            return opening.inputs()[0]
        except DataAccessError:
            return ""

    if size > _SMALL:
        return None
    return Member(opening.files.root, first_key(first, again), partial(_read, opening))


def _read(opening: Opening) -> MetaTables | None:
    try:
        return opening.read_tables()
    except DataAccessError:
        return None

"""Addresses of datasets: what of one may be shown and written down, and where the rest of it is kept.

A URL may hold secrets: a user and password before the host, a signature in the query. Run folders, exported policies,
pages and messages are given to others, so they hold addresses without them (`shown`). The whole address stays in the
memory of the process (`put_aside`) and is found again where a file is opened (`whole`). A later process is given it
anew: in its settings, in the environment variable `VARIABLE`, or as a host's user and password in ~/.netrc, which is
read by `remote/http.py`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, MutableMapping
from urllib.parse import unquote

VARIABLE = "UNDERSTUDY_ADDRESSES"
"""Whole addresses, with white space between them. A dataset at one of them is opened with its secrets."""
CREDENTIALS_HINT = f"~/.netrc, the whole address in {VARIABLE} or as --data.root; a run's folder keeps no credentials"
"""Where credentials can be given, for messages."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL = re.compile(_SCHEME.pattern + r"[^\s'\"<>]*")  # in a text
_NUMBER = re.compile(r"#[0-9]+")
_PUBLIC_USERS = {"github", "git", "abfs", "abfss", "wasb", "wasbs"}  # what stands before their @ says where, not who
_LEAST = 4  # characters of a secret that is looked for on its own; a shorter one would be found in every text
_LEAST_VALUE = 8  # the same for a value in a query, most of which are no secrets

_full_addresses: dict[str, str] = {}  # address as it is shown -> the whole, of this process


def strip_credentials(address: str) -> str:
    """An address, perhaps behind "simplecache::" or "--data.root=", without user, password and query; anything else as
    it is. Spaces and quotes belong to it: what follows them may be a query. Two datasets that differ only in what is
    taken away have the same one, but for `#2`, `#3`, which `put_aside` gives them."""
    found = _SCHEME.search(address)
    return address[: found.start()] + _shown(address[found.start() :]) if found else address


def _shown(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return url
    place, number = re.split(r"[?#]", rest, maxsplit=1)[0], _NUMBER.fullmatch(rest[rest.rfind("#") :])
    host, slash, path = place.partition("/")
    port = host.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    if port and not port.isdigit() and "@" in rest:  # a password with one of / ? # in it: the host comes later
        rest = rest[rest.rfind("@") + 1 :]
        place = re.split(r"[?#]", rest, maxsplit=1)[0]
        host, slash, path = place.partition("/")
    user, at, bare = host.rpartition("@")
    if at and scheme not in _PUBLIC_USERS and (":" in user or scheme in ("http", "https")):
        host = bare
    return f"{scheme}://{host}{slash}{path}{number[0] if number else ''}"


def remember_credentials(address: str, given: MutableMapping[str, str], fresh: bool = True) -> str:
    """`shown(address)`, and the whole is kept for `whole`. What is no URL stays as it is.

    Args:
        given: URLs that belong together, shown -> whole; this one is added. Those that are shown alike get #2, #3, ...
        fresh: replaces what is kept from before; otherwise that stays.
    """
    if "://" not in address:
        return address
    name = _name(address, given)
    if name != address and (fresh or name.rstrip("/") not in _full_addresses):
        _full_addresses[name.rstrip("/")] = address
    return name


def _name(address: str, given: MutableMapping[str, str]) -> str:
    plain, number = strip_credentials(address), 1
    name = plain
    while given.setdefault(name.rstrip("/"), address) != address:
        number += 1
        name = f"{plain}#{number}"
    return name


def restore_credentials(address: str) -> str:
    """The address with its secrets, as it was put aside, or as the environment has it; itself where neither is so."""
    if strip_credentials(address) != address:
        return address
    key = address.rstrip("/")
    if key in _full_addresses:
        return _full_addresses[key]
    given: dict[str, str] = {}
    for one in os.environ.get(VARIABLE, "").split():
        _name(one, given)
    return given.get(key, address)


def has_credentials(address: str) -> bool:
    """Whether this process was given the address with secrets."""
    return address.rstrip("/") in _full_addresses


def redact(text: str) -> str:
    """A text for people without the secrets of any address in it, nor those that were put aside."""
    for address in (*_full_addresses.values(), *os.environ.get(VARIABLE, "").split()):
        for secret in _secrets(address):
            if secret in text:
                text = text.replace(secret, "***")
    return _URL.sub(lambda found: _shown(found[0]), text)


def _secrets(address: str) -> Iterator[str]:
    """What must not be seen of an address, the longest first."""
    rest = address.partition("://")[2]
    before, _, query = rest.partition("?")
    user, at, _ = before.partition("/")[0].rpartition("@")
    password = user.partition(":")[2]
    plain = unquote(user)
    pieces = {user, plain, base64.b64encode(plain.encode()).decode(), password, unquote(password)} if at else set()
    pieces = {piece for piece in pieces if len(piece) >= _LEAST}
    values = {pair.partition("=")[2] for pair in re.split("[&;]", query.partition("#")[0])}
    pieces |= {piece for value in values for piece in (value, unquote(value)) if len(piece) >= _LEAST_VALUE}
    yield from sorted(pieces | ({query} if len(query) >= _LEAST else set()), key=len, reverse=True)

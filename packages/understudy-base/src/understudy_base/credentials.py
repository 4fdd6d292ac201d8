"""Credentials in addresses of datasets: removed for display, remembered for opening files.

A URL may hold secrets: user and password before the host, or a signature in the query. Run folders,
exported policies, pages and messages may be shared, so they hold addresses without secrets
(`strip_credentials`). The full address stays in this process's memory (`remember_credentials`) and
is restored to open files (`restore_credentials`). Another process gets it from its settings, from
the environment variable `VARIABLE`, or from ~/.netrc (`storage/http_client.py`).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, MutableMapping
from urllib.parse import unquote

from understudy_base.dataset_address import split_view

VARIABLE = "UNDERSTUDY_ADDRESSES"
"""Environment variable with full addresses, separated by white space. Their datasets are opened
with these secrets.
"""
CREDENTIALS_HINT = (
    f"~/.netrc, the full address in {VARIABLE} or as --data.root; a run's folder "
    "keeps no credentials"
)
"""Places for credentials, for error messages."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL = re.compile(_SCHEME.pattern + r"[^\s'\"<>]*")  # inside a text
_NUMBER = re.compile(r"#[0-9]+")
_PUBLIC_USERS = {
    "github",
    "git",
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
}  # protocols with a location before the @, not a user
# characters of a secret that `redact` searches for; a shorter one occurs in any text
_MIN_SECRET = 4
_MIN_VALUE = 8  # the same for values of a query, most of which are no secrets

full_addresses: dict[str, str] = {}  # address without credentials -> full address


def strip_credentials(address: str) -> str:
    """Remove user, password and query from an address; return other text unchanged.

    A prefix such as "simplecache::" or "--data.root=" is kept. Spaces and quotes are part of the
    address: a query may follow them. Two datasets that differ only in the removed parts get equal
    results, except for the suffixes `#2`, `#3` of `remember_credentials`.
    """
    scheme = _SCHEME.search(address)
    if scheme is None:
        return address
    begin = scheme.start()
    return address[:begin] + _strip_url(address[begin:])


def _strip_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return url
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    fragment = rest[rest.rfind("#") :]
    if not _NUMBER.fullmatch(fragment):
        fragment = ""
    host, slash, path = place.partition("/")
    port = host.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    # the password holds one of / ? #, so the host follows
    if port and not port.isdigit() and "@" in rest:
        rest = rest[rest.rfind("@") + 1 :]
        place = re.split(r"[?#]", rest, maxsplit=1)[0]
        host, slash, path = place.partition("/")
    user, at_sign, bare = host.rpartition("@")
    if at_sign and scheme not in _PUBLIC_USERS and (":" in user or scheme in ("http", "https")):
        host = bare
    return f"{scheme}://{host}{slash}{path}{fragment}"


def remember_credentials(
    address: str, names: MutableMapping[str, str], replace: bool = True
) -> str:
    """Return `strip_credentials(address)` and remember the full address for `restore_credentials`.

    Text that is no URL is returned unchanged, and a view (`dataset_address.py`) stays.

    Args:
        address: The full address.
        names: URLs that belong together, without credentials -> full; this one is added. Equal
            names get the suffixes #2, #3, ...
        replace: Replace an earlier full address of the same name.
    """
    if "://" not in address:
        return address
    address, view = split_view(address)
    name = _unique_name(address, names)
    if name != address and (replace or name.rstrip("/") not in full_addresses):
        full_addresses[name.rstrip("/")] = address
    return name + view


def _unique_name(address: str, names: MutableMapping[str, str]) -> str:
    plain = strip_credentials(address)
    number = 1
    name = plain
    while names.setdefault(name.rstrip("/"), address) != address:
        number += 1
        name = f"{plain}#{number}"
    return name


def restore_credentials(address: str) -> str:
    """Return the full address: remembered, or from the environment; the address itself if there is
    neither.
    """
    if strip_credentials(address) != address:
        return address
    key = address.rstrip("/")
    if key in full_addresses:
        return full_addresses[key]
    names: dict[str, str] = {}
    for full in os.environ.get(VARIABLE, "").split():
        _unique_name(full, names)
    return names.get(key, address)


def has_credentials(address: str) -> bool:
    """Return whether this process remembers a full address for `address`."""
    return address.rstrip("/") in full_addresses


def redact(text: str) -> str:
    """Remove credentials from a text: those of any address in it, and all remembered ones."""
    for address in (*full_addresses.values(), *os.environ.get(VARIABLE, "").split()):
        for secret in _secrets(address):
            if secret in text:
                text = text.replace(secret, "***")
    return _URL.sub(lambda url: _strip_url(url[0]), text)


def _secrets(address: str) -> Iterator[str]:
    """Yield the secret parts of an address, longest first."""
    rest = address.partition("://")[2]
    place, _, query = rest.partition("?")
    user = place.partition("/")[0].rpartition("@")[0]
    password = user.partition(":")[2]
    plain = unquote(user)
    encoded = base64.b64encode(plain.encode()).decode()
    pieces = (user, plain, encoded, password, unquote(password), query)
    secrets = {piece for piece in pieces if len(piece) >= _MIN_SECRET}
    values = {pair.partition("=")[2] for pair in re.split("[&;]", query.partition("#")[0])}
    values |= {unquote(value) for value in values}
    secrets |= {value for value in values if len(value) >= _MIN_VALUE}
    yield from sorted(secrets, key=len, reverse=True)

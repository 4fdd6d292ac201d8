"""Tokens and names of the host."""

import hmac
import ipaddress
import os
from pathlib import Path

from understudy_base import ConfigError

VARIABLE = "UNDERSTUDY_SERVE_TOKEN"
"""Environment variable of the token, of the server and of `RemotePolicy`."""


def read_token(file: str) -> str | None:
    """Read the token of a file, or of the environment; None: there is none.

    Raises:
        ConfigError: the file is unreadable or empty, or the token has a character that no header
            may have.
    """
    token = os.environ.get(VARIABLE, "").strip()
    where = VARIABLE
    if file:
        where = file
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file: {file}: {error}") from error
        if not token:
            raise ConfigError(f"token_file: {file} is empty; write a token into it")
    if not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(f"{where}: the token must be one word of printable ASCII characters")
    return token or None


def is_authorized(header: str | None, token: str | None) -> bool:
    """Return whether an `Authorization` header has the token; in constant time for tokens of one
    length.
    """
    if token is None:
        return True
    scheme, _, header_token = (header or "").partition(" ")
    same = hmac.compare_digest(header_token.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() in ("bearer", "api-key")


def is_loopback(host: str) -> bool:
    """Return whether an address or a name means this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False

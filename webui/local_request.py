"""Whether a request comes from this machine itself, by the name of this machine, and not through a proxy."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
_PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")


def is_local(connection: HTTPConnection) -> bool:
    """False too for a strange host name that leads here (DNS rebinding, tunnels)."""
    if any(name in connection.headers for name in _PROXY_HEADERS):
        return False
    host = connection.client.host if connection.client else ""
    named = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    return is_loopback(host) and named in _LOCAL_NAMES


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; False for what is no address."""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)

"""The public link of `--share`, and who could reach the studio without a password."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import threading
from urllib.parse import urlparse, urlunparse

logger = logging.getLogger(__name__)

_PROBLEMS = {
    "share_no_program": "the tunnel's program (frpc) is missing and could not be fetched; it belongs at {path}",
    "share_bad_program": "the tunnel's program at {path} is not the expected one; remove it and start again",
    "share_no_network": "Gradio's tunnel service cannot be reached from here; an own one can be named in "
    "GRADIO_SHARE_SERVER_ADDRESS",
    "share_refused": "the tunnel was refused ({reason})",
}


class Sharing:
    """Whether others can reach this studio. Set by whoever starts it; read by the page each time it is opened."""

    def __init__(self) -> None:
        self.wanted = False  # a public link was asked for
        self.url: str | None = None
        self.problem: str | None = None  # text key of the reason why there is no link
        self.details: dict[str, str] = {}
        self.unguarded = False  # others can reach it, and nobody is asked for a password

    def open(self, port: int, timeout: float | None = None) -> threading.Thread:
        """Ask for a public link to the local `port` in a thread of its own, as that may take half a minute."""
        self.wanted = True
        thread = threading.Thread(target=self._open, args=(port,), name="share", daemon=True)
        thread.start()
        if timeout is not None:
            thread.join(timeout)
        return thread

    def _open(self, port: int) -> None:
        try:
            url = tunnel(port)
        except TunnelError as error:
            self.problem, self.details = error.code, error.details
            print(f"No public link: {error}. The studio runs locally.", flush=True)
        else:
            self.url = url
            print(f"Public link: {url}", flush=True)
            logger.info("public link: %s", url)


class TunnelError(Exception):
    """Why there is no public link; `code` is a key of the page's texts."""

    def __init__(self, code: str, **details: str) -> None:
        super().__init__(_PROBLEMS[code].format(**details))
        self.code = code
        self.details = details


def tunnel(port: int) -> str:
    """A public address for the local `port`. Raises `TunnelError`."""
    import httpx
    from gradio import networking, tunneling
    from gradio.exceptions import ChecksumMismatchError

    own = os.environ.get("GRADIO_SHARE_SERVER_ADDRESS")
    path = str(tunneling.BINARY_PATH)
    try:
        address = networking.setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), own, None)
    except ChecksumMismatchError as error:
        raise TunnelError("share_bad_program", path=path) from error
    except Exception as error:  # Gradio raises plain errors of many kinds here
        if isinstance(error, RuntimeError) and "API Server" in str(error):
            raise TunnelError("share_no_network") from error
        if not os.path.exists(path):
            raise TunnelError("share_no_program", path=path) from error
        if isinstance(error, httpx.HTTPError | OSError):
            raise TunnelError("share_no_network") from error
        raise TunnelError("share_refused", reason=str(error).strip().splitlines()[-1][:200]) from error
    return urlunparse(("http" if own else "https", *urlparse(address)[1:]))


def is_public(server_name: str) -> bool:
    """Whether other machines can reach a server that listens on that address."""
    if server_name == "localhost":
        return False
    try:
        return not ipaddress.ip_address(server_name).is_loopback
    except ValueError:  # a host name
        return True


def own_address() -> str:
    """This machine's address in its network; "" without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))  # chooses a route, sends nothing
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if address.startswith(("127.", "0.")) else address

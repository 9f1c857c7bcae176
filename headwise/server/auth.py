"""Access control: requests must carry the token, if the server has one, and must not come from pages of other sites.

A page of any site can make a browser send requests to 127.0.0.1, and a DNS name of that site may resolve to this
machine. Browsers send the site of the page (Origin) and the name they resolved (Host): a request with a foreign name in
one of these headers is refused.
"""

from __future__ import annotations

import ipaddress
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headwise.errors import ArgumentError, FileError, RequestRefused
from headwise.server.protocols import PROTOCOLS
from headwise.server.routes.refusal import Refusals

# Open to everyone: health probes, and the page, which holds no data and asks its reader for the token.
OPEN = frozenset({"/livez", "/readyz", "/docs"})
FORBIDDEN = 403
_SHORTEST = 16


class Auth:
    """ASGI middleware: refuses requests without the token, from pages of other sites, or with a foreign host name.

    Args:
        token: None = no token is required.
        local: whether the server listens on the loopback address only; then the host must be a name of this machine.
        refuse: makes the responses to refused requests; None = the responses of plain routes.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, local: bool, refuse: Refusals | None = None) -> None:
        self._app, self._token, self._local, self._refuse = app, token, local, refuse or Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            why = self._foreign(headers)
            if why is not None:
                await self._refuse(scope, RequestRefused("unauthorized", why), FORBIDDEN)(scope, receive, send)
                return
            if not is_open(scope["path"]) and not is_token(self._token, headers.get("authorization")):
                error = RequestRefused("unauthorized", "expected the server's token: Authorization: Bearer TOKEN")
                await self._refuse(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            site = host if origin is None else urlsplit(origin).netloc
        except ValueError:
            return "the Host or Origin header is not a valid address"
        if self._local and host and not is_local(name):
            return "this server only accepts the host names localhost and 127.0.0.1"
        return None if site == host else "this server refuses requests from pages of other sites"


def is_open(path: str) -> bool:
    """Whether a path or a gRPC method needs no token."""
    return path in OPEN or any(path in protocol.open for protocol in PROTOCOLS.values())


def is_token(token: str | None, authorization: str | None) -> bool:
    """Whether the Authorization header holds the token; True if no token is required (`token` is None)."""
    if token is None:
        return True
    scheme, _, given = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and compare_digest(given.strip().encode(), token.encode())


def is_local(host: str) -> bool:
    """Whether a name or address is a loopback address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None, environment: str | None) -> str | None:
    """Read the token from the file `path` (its first line), else take `environment`, a value; None if both are missing.

    Raises:
        FileError: the file cannot be read.
        ArgumentError: the token is too short, or contains characters that a header cannot hold.
    """
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise FileError(f"--token-file {path}: cannot be read: {why}") from error
        token, source = text.strip(), f"--token-file {path}"
    elif environment is not None:
        token, source = environment.strip(), "HEADWISE_TOKEN"
    else:
        return None
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ArgumentError(
            f"{source}: expected one line of at least {_SHORTEST} printable ASCII characters without spaces. Received: "
            f"{len(token)} characters. To make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token

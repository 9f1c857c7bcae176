"""Where the server listens: sockets and TLS, with an error message for each thing that can fail."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from headwise.errors import FileError
from headwise.server.settings import Settings


def bind(host: str, port: int, option: str) -> socket.socket:
    """Bind a socket and return it. It does not listen yet, so connections are refused until the models are loaded.

    Args:
        port: 0 = any free port.
        option: the option named in errors, such as "--port".

    Raises:
        FileError: the port is in use or not allowed, or the address does not belong to this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (socket.gaierror, UnicodeError) as error:
        raise FileError(f"--host {host}: this address does not exist") from error
    bound = socket.socket(family, kind)
    try:
        if os.name == "posix":  # otherwise the port stays blocked for a minute after a server ended
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unusable(host, port, option, error) from error
    return bound


def check_free(host: str, port: int, option: str) -> None:
    """Raise FileError like `bind` if the port is in use. For gRPC, which binds by itself, with vaguer errors."""
    if port:
        bind(host, port, option).close()


def _unusable(host: str, port: int, option: str, error: OSError) -> FileError:
    if error.errno == errno.EADDRINUSE:
        return FileError(f"{option} {port}: the port is in use. Choose another one, or 0 for any free port")
    if error.errno == errno.EADDRNOTAVAIL:
        return FileError(f"--host {host}: this address does not belong to this machine")
    why = (error.strerror or str(error)).lower()
    return FileError(f"{option} {port}: the port cannot be used ({why}). Choose another one, or 0 for any free port")


def check_tls(settings: Settings) -> None:
    """Raise FileError if the TLS files cannot be read, or do not belong together."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.tls_cert,
            settings.tls_key,
            password="",  # refuse an encrypted key; otherwise OpenSSL would prompt for a password
        )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError too
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "the key is encrypted"
        raise FileError(
            f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: expected a certificate and its key in PEM, "
            f"without a password: {str(why).lower().replace('_', ' ')}"
        ) from error


def address(host: str, port: int) -> str:
    """Format an address as host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""Where the server listens: sockets, TLS, and the sentences for what cannot be."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from headwise.errors import FileError
from headwise.server.settings import Settings


def bind(host: str, port: int, option: str) -> socket.socket:
    """A socket that is bound and does not listen yet: until the models are loaded, clients are refused.

    Args:
        port: 0 = any that is free.
        option: for the sentence: "--port".

    Raises:
        FileError: the port is in use or may not be used, or there is no such address here.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (socket.gaierror, UnicodeError) as error:
        raise FileError(f"--host {host}: there is no such address") from error
    bound = socket.socket(family, kind)
    try:
        if os.name == "posix":  # else the port of a server that just ended stays closed for a minute
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unusable(host, port, option, error) from error
    return bound


def check_free(host: str, port: int, option: str) -> None:
    """Raise FileError, as `bind`, where the port is not free: gRPC binds by itself, and says less."""
    if port:
        bind(host, port, option).close()


def _unusable(host: str, port: int, option: str, error: OSError) -> FileError:
    if error.errno == errno.EADDRINUSE:
        return FileError(f"{option} {port}: the port is in use; choose another one, or 0 for any that is free")
    if error.errno == errno.EADDRNOTAVAIL:
        return FileError(f"--host {host}: it is no address of this machine")
    why = (error.strerror or str(error)).lower()
    return FileError(f"{option} {port}: it cannot be used ({why}); choose another one, or 0 for any that is free")


def check_tls(settings: Settings) -> None:
    """Raise FileError where the files of TLS cannot be read, or do not belong together."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.tls_cert,
            settings.tls_key,
            password="",  # an encrypted key is refused; else OpenSSL asks the terminal
        )
    except (OSError, ValueError) as error:  # that of ssl is an OSError too
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "the key is encrypted"
        raise FileError(
            f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: expected a certificate and its key in PEM, "
            f"without a password: {str(why).lower().replace('_', ' ')}"
        ) from error


def address(host: str, port: int) -> str:
    """host:port, as an address has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

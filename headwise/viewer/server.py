"""The live server: the same page for any length, its weights worked out when they are looked at.

Nobody but the reader gets in: it listens on 127.0.0.1 alone, wants a random token in every address, and refuses hosts
and origins that are not its own (a page elsewhere can make a browser ask, under any name that leads here).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from headwise.errors import ArgumentError, FileError
from headwise.viewer.inputs import Input

if TYPE_CHECKING:
    import uvicorn

    from headwise.viewer.site import Site

ADDRESS = "127.0.0.1"


def serve(
    inputs: Sequence[Input], *, title: str, made: str | None = None, port: int = 0, open_page: bool = False
) -> None:
    """Show `inputs` to the browsers of this machine, until Ctrl-C.

    Args:
        inputs: of `inputs_of`.
        title: of the page.
        made: the Python that makes `seen`, such as 'headwise.load("run.hw")'; None = nobody knows.
        port: where to listen; 0 = where nobody else does.
        open_page: open it in a browser.

    Raises:
        ArgumentError: a port that there is not, or the packages of the extra `view` are not installed.
        FileError: the port is in use, or may not be used.
    """
    with _site(inputs, title, made, port) as (site, listener):
        click.echo(f"Serving {_printable(title)} at {site.url} — Ctrl-C stops it")
        if open_page:  # in a thread, because a browser that runs in the terminal returns only when it is closed
            threading.Thread(target=webbrowser.open, args=(site.url,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            _server(site).run([listener])


@contextlib.contextmanager
def serving(inputs: Sequence[Input], *, title: str, made: str | None = None, port: int = 0) -> Iterator[str]:
    """The same in a thread, while the context lasts; gives the address. Arguments and errors of `serve`."""
    with _site(inputs, title, made, port) as (site, listener):
        server = _server(site)
        thread = threading.Thread(target=server.run, args=([listener],), name="headwise server", daemon=True)
        thread.start()
        try:
            yield site.url
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def _site(inputs: Sequence[Input], title: str, made: str | None, port: int) -> Iterator[tuple[Site, socket.socket]]:
    try:
        import uvicorn  # noqa: F401

        from headwise.viewer.site import Site
    except ImportError as error:
        raise ArgumentError(
            'the live server needs starlette and uvicorn, which are not here: pip install "headwise[view]"'
        ) from error
    with _listener(port) as listener:
        site = Site(inputs, title=title, made=made, port=listener.getsockname()[1])
        try:
            yield site, listener
        finally:
            site.close()


def _listener(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ArgumentError(f"port: expected 0 to 65535, where 0 means any that is free. Received: {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # else the port of a server that just ended stays closed for a minute
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        why = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be used ({(error.strerror or str(error)).lower()})"
        )
        raise FileError(f"port {port} {why}: choose another one, or --port 0 for any that is free") from error
    return listener


def _server(site: Site) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            site.stop()  # nobody waits for what is still being worked out
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            site,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,  # it would tell the token
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )


def _printable(title: str) -> str:
    """A title may come from data, which must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in title)

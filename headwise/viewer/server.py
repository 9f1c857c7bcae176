"""Serves the page from this machine: for inputs of any length; weights are computed when they are viewed.

Only the reader has access: the server listens on 127.0.0.1, requires a random token in every address, and refuses other
hosts and origins (a page of another site can make a browser send requests here, under any DNS name).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError, FileError
from headwise.extras import need
from headwise.language import echo, said
from headwise.viewer.inputs import Input

if TYPE_CHECKING:
    import uvicorn

    from headwise.viewer.live import Live
    from headwise.viewer.site import Guarded

ADDRESS = "127.0.0.1"

Make = Callable[[int], "Guarded"]  # makes the application for a port


def serve(
    inputs: Sequence[Input], *, title: str, made: str | None = None, port: int = 0, open_page: bool = False
) -> None:
    """Serve a page of `inputs` to browsers on this machine, until Ctrl-C.

    Args:
        inputs: see `inputs_of`.
        title: the title of the page.
        made: the Python code that produces `seen`, such as 'headwise.load("run.hw")'; None = unknown.
        port: the port to listen on; 0 = a free port.
        open_page: whether to open the page in a browser.

    Raises:
        ArgumentError: an invalid port, or the packages of the extra `view` are not installed.
        FileError: the port is in use or not allowed.
    """
    serve_site(_maker(inputs, title=title, made=made), title=title, port=port, open_page=open_page)


def serve_live(live: Live, prompt: str, *, port: int = 0, open_page: bool = False) -> None:
    """Serve a page on which a person types prompts and edits a model's attention, until Ctrl-C.

    `live`: the model. `prompt`: the first prompt. For the other arguments and the errors see `serve` and `Live.facts`.
    """
    make = _maker((), title=live.title, live=live, prompt=prompt)
    serve_site(make, title=live.title, port=port, open_page=open_page)


def serve_site(make: Make, *, title: str, port: int = 0, open_page: bool = False) -> None:
    """Serve an application until Ctrl-C.

    `make`: port -> application; the other arguments and the errors: see `serve`.
    """
    with _site(make, port) as (site, listener):
        echo(said("Serving {title} at {url} — Ctrl-C stops it", title=" ".join(title.split()), url=site.url))
        if open_page:  # in a thread, because a browser in the terminal blocks until it is closed
            threading.Thread(target=webbrowser.open, args=(site.url,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            _server(site).run([listener])


def serving(
    inputs: Sequence[Input], *, title: str, made: str | None = None, port: int = 0
) -> AbstractContextManager[str]:
    """Run `serve` in a thread; a context manager that returns the address. Arguments and errors: see `serve`."""
    return serving_site(_maker(inputs, title=title, made=made), port=port)


@contextlib.contextmanager
def serving_site(make: Make, *, port: int = 0) -> Iterator[str]:
    """Run `serve_site` in a thread; a context manager that returns the address."""
    with _site(make, port) as (site, listener):
        server = _server(site)
        thread = threading.Thread(target=server.run, args=([listener],), name="headwise server", daemon=True)
        thread.start()
        try:
            yield site.url
        finally:
            server.should_exit = True
            thread.join()


def serving_live(live: Live, prompt: str, *, port: int = 0) -> AbstractContextManager[str]:
    """Run `serve_live` in a thread; a context manager that returns the address."""
    return serving_site(_maker((), title=live.title, live=live, prompt=prompt), port=port)


def _maker(inputs: Sequence[Input], **given: Any) -> Make:
    """Return a function that makes the `Site` with these arguments for a port."""

    def make(port: int) -> Guarded:
        from headwise.viewer.site import Site

        return Site(inputs, port=port, **given)

    return make


@contextlib.contextmanager
def _site(make: Make, port: int) -> Iterator[tuple[Guarded, socket.socket]]:
    need("the live server", "view")
    with _listener(port) as listener:
        site = make(listener.getsockname()[1])
        try:
            yield site, listener
        finally:
            site.close()


def _listener(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ArgumentError(f"port: expected 0 to 65535, where 0 means a free port. Received: port={port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # otherwise the port stays blocked for a minute after a server ended
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
        raise FileError(f"port {port} {why}. Choose another one, or --port 0 for a free port") from error
    return listener


def _server(site: Guarded) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            site.stop()  # cancel pending work
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
            access_log=False,  # it would contain the token
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )

"""`headwise serve`: trained tasks and exports, over HTTP and gRPC."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from headwise.errors import ArgumentError, FileError

_OFF = "off"


class _Port(click.ParamType):
    name = "port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == _OFF or value is None:
            return None
        if isinstance(value, str) and value.isdecimal() and int(value) <= 65535:
            return int(value)
        if isinstance(value, int):
            return value
        self.fail(f"expected 0 to 65535, or {_OFF}; received {value!r}", param, ctx)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]RUN_OR_EXPORT...")
@click.option(
    "--backend",
    type=click.Choice(["auto", "torch", "onnx"]),
    default="auto",
    help="What runs the models. auto: ONNX Runtime for an export to ONNX, else PyTorch.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "fp16", "int8"]),
    default="fp32",
    show_default=True,
    help="Of the numbers that models compute with.",
)
@click.option("--workers", type=int, default=1, show_default=True, metavar="N", help="Processes that run models.")
@click.option("--threads", type=int, metavar="N", help="Threads of each worker. Default: the cores, shared out.")
@click.option(
    "--max-batch", type=int, default=32, show_default=True, metavar="ROWS", help="The most rows a model gets at once."
)
@click.option(
    "--max-delay-ms",
    type=float,
    default=2.0,
    show_default=True,
    metavar="MS",
    help="How long a row may wait for others.",
)
@click.option(
    "--max-queue",
    type=int,
    default=1024,
    show_default=True,
    metavar="ROWS",
    help="Rows that may wait for a model; then clients are told to come again.",
)
@click.option(
    "--max-tokens",
    type=int,
    default=4096,
    show_default=True,
    metavar="N",
    help="The most tokens of a row; 0 = any number.",
)
@click.option(
    "--max-body", type=int, default=16 * 2**20, show_default=True, metavar="BYTES", help="Of a request, unpacked."
)
@click.option(
    "--timeout",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Until a request must be answered.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen: this machine alone, unless told.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    metavar="N",
    help="Of HTTP. 0 = any that is free, as with the others.",
)
@click.option(
    "--grpc-port",
    type=_Port(),
    default=8001,
    show_default=True,
    metavar="N|off",
    help="Of the Open Inference Protocol over gRPC.",
)
@click.option(
    "--tensorflow-port",
    type=_Port(),
    default=8500,
    show_default=True,
    metavar="N|off",
    help="Of TensorFlow Serving over gRPC.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A file with the token that clients must send. Default: that of HEADWISE_TOKEN, if it is set.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="PATH", help="A certificate, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="PATH", help="Its key, in PEM, without a password.")
@click.option(
    "--drain",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="That accepted requests have, when it is told to stop.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks, also in the log, where they may quote requests.")
def serve(
    models: tuple[str, ...],
    max_tokens: int,
    port: int,
    token_file: Path | None,
    debug: bool,
    **options: object,
) -> None:
    """Serve trained tasks and exports over HTTP and gRPC, until Ctrl-C.

    RUN_OR_EXPORT is a folder that headwise train or headwise export wrote; its name is that of the model, unless NAME=
    goes before.

    A plain route for each task (POST /classify {"text": "…"}), the Open Inference Protocol (KServe v2, clients of
    Triton) and TensorFlow Serving's; the page at /docs shows them all.
    """
    folders = named(models)
    try:
        from headwise.server.auth import read_token
        from headwise.server.run import serve as run
        from headwise.server.settings import Settings
    except ImportError as error:
        raise ArgumentError(
            f'headwise serve needs {error.name}, which is not here: pip install "headwise[serve]"'
        ) from error
    settings = Settings(
        http_port=port,
        max_tokens=max_tokens or None,
        token=read_token(token_file, os.environ.get("HEADWISE_TOKEN")),
        **options,  # type: ignore[arg-type]
    )
    run(folders, settings, say=click.echo, debug=debug)


def named(models: Sequence[str]) -> dict[str, Path]:
    """Folders by the names of their models. Raises FileError, ArgumentError: no such folder, or a name twice."""
    found: dict[str, Path] = {}
    for given in models:
        name, is_named, path = given.partition("=")
        folder = Path(path if is_named and not Path(given).exists() else given)
        if folder == Path(given):
            name = Path(os.path.abspath(folder)).name  # of a link its own: what it leads to changes
        if not folder.exists():
            raise FileError(f"{folder}: there is no such folder")
        if not name or not all(letter.isalnum() or letter in "._-" for letter in name):
            raise ArgumentError(
                f"{name!r} is no name for a model: expected letters, digits and . _ -, received {given!r}; put NAME= "
                "before the folder"
            )
        if name in found:
            raise ArgumentError(f"there are two models of the name {name!r}: put NAME= before one of the folders")
        found[name] = folder
    return found

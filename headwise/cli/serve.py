"""`headwise serve`: serves trained tasks and exports, over HTTP and gRPC."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from headwise.cli.later import Later, later
from headwise.cli.shared import PATH, language
from headwise.errors import ArgumentError, FileError
from headwise.extras import need
from headwise.language import echo
from headwise.server.protocols import grpc_protocols
from headwise.server.settings import Backend, Precision, Settings

_OFF = "off"
_MINILM = "minilm"


class _Port(click.ParamType):
    name = "port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == _OFF or value is None:
            return None
        if isinstance(value, str) and value.isdecimal() and int(value) <= 65535:
            return int(value)
        if isinstance(value, int):
            return value
        self.fail(f"expected 0 to 65535, or {_OFF}. Received: {value!r}", param, ctx)


def _ports() -> Iterator[click.Option]:
    """Yield an option for the port of each protocol that uses gRPC."""
    for name, protocol in grpc_protocols().items():
        yield click.Option(
            [protocol.option, f"{name}_port"],
            type=_Port(),
            default=protocol.port,
            metavar="N|off",
            help=f"The port for gRPC: {protocol.title}.",
        )


@click.command(cls=Later, short_help="Serve trained tasks and exports over HTTP and gRPC.")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]RUN_OR_EXPORT...")
@click.option(
    "--backend",
    type=click.Choice(get_args(Backend)),
    default=Settings.backend,
    help="What runs the models. auto: ONNX Runtime for an ONNX export, otherwise PyTorch.",
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default=Settings.precision,
    help="The precision that models compute in.",
)
@click.option("--workers", type=int, default=Settings.workers, metavar="N", help="Processes that run models.")
@click.option("--threads", type=int, metavar="N", help="Threads of each worker. Default: cores divided by workers.")
@click.option(
    "--max-batch", type=int, default=Settings.max_batch, metavar="ROWS", help="Most rows in one batch of a model."
)
@click.option(
    "--max-delay-ms",
    type=float,
    default=Settings.max_delay_ms,
    metavar="MS",
    help="How long a row may wait for others to share its batch.",
)
@click.option(
    "--max-queue",
    type=int,
    default=Settings.max_queue,
    metavar="ROWS",
    help="Most rows in the queue of a model; clients of further rows are told to try again later.",
)
@click.option(
    "--max-tokens", type=int, default=Settings.max_tokens, metavar="N", help="Most tokens in one row; 0 = no limit."
)
@click.option(
    "--max-body", type=int, default=Settings.max_body, metavar="BYTES", help="Size limit of a request, unpacked."
)
@click.option("--timeout", type=float, default=Settings.timeout, metavar="SECONDS", help="Time limit for a request.")
@click.option(
    "--host",
    default=Settings.host,
    metavar="ADDRESS",
    help="The address to listen on. The default accepts connections from this machine only.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=Settings.http_port,
    metavar="N",
    help="The port for HTTP; 0 = any free port, here and for the other ports.",
)
@later(_ports)
@click.option(
    "--token-file",
    help="A file with the token that clients must send. Default: the value of HEADWISE_TOKEN, if it is set.",
    **PATH,
)
@click.option("--tls-cert", help="A certificate, in PEM.", **PATH)
@click.option("--tls-key", help="Its key, in PEM, without a password.", **PATH)
@click.option(
    "--drain",
    type=float,
    default=Settings.drain,
    metavar="SECONDS",
    help="Time for accepted requests to finish when the server is stopped.",
)
@language
@click.option("--debug", is_flag=True, help="Show tracebacks, also in the log. They may quote requests.")
def serve(
    models: tuple[str, ...],
    max_tokens: int,
    port: int,
    token_file: Path | None,
    debug: bool,
    **options: Any,
) -> None:
    """Serve trained tasks and exports over HTTP and gRPC, until Ctrl-C.

    RUN_OR_EXPORT is a folder that headwise train or headwise export wrote, or that of a BERT, which gives vectors of
    texts ("minilm" is the one in the extra demo). The model gets the name of the folder, unless NAME= is given.

    The server offers a plain route for each task (POST /classify {"text": "…"}), the Open Inference Protocol (KServe
    v2, Triton clients) and the protocol of TensorFlow Serving. The page /docs lists all routes.
    """
    folders = named(models)
    need("headwise serve", "serve")

    from headwise.server.auth import read_token
    from headwise.server.run import serve as run

    settings = Settings(
        http_port=port,
        ports={name: options.pop(f"{name}_port") for name in grpc_protocols()},
        max_tokens=max_tokens or None,
        token=read_token(token_file, os.environ.get("HEADWISE_TOKEN")),
        **options,
    )
    run(folders, settings, say=echo, debug=debug)


def named(models: Sequence[str]) -> dict[str, Path]:
    """Find the folders of the models on the command line: name of a model -> its folder.

    Raises:
        FileError: a folder does not exist.
        CheckpointError: "minilm" is not installed.
        ArgumentError: a name is invalid, or two models have the same name.
    """
    found: dict[str, Path] = {}
    for given in models:
        name, is_named, path = given.partition("=")
        folder = Path(path if is_named and not Path(given).exists() else given)
        if folder == Path(given):
            name = Path(os.path.abspath(folder)).name  # for a link the name of the link: its target may change
        if str(folder) == _MINILM and not folder.exists():
            from headwise.models.checkpoint import default_model

            folder = default_model()
        if not folder.exists():
            raise FileError(
                "{folder}: the folder does not exist. Expected a run folder, an export, or a BERT", folder=folder
            )
        if not name or not all(letter.isalnum() or letter in "._-" for letter in name):
            raise ArgumentError(
                "a model's name must consist of letters, digits and . _ -. Received: {given!r}. Put NAME= before "
                "the folder",
                given=given,
            )
        if name in found:
            raise ArgumentError("two models have the name {name!r}. Put NAME= before one of the folders", name=name)
        found[name] = folder
    return found

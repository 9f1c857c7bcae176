"""`headwise serve`: what it refuses before anything is started. tests/server/test_run.py has one that serves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headwise.cli import serve as command
from headwise.errors import ArgumentError
from headwise.models.checkpoint import default_model

from .conftest import Run, refused

FREE = ("--port", "0", "--grpc-port", "off", "--tensorflow-port", "off")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "films").mkdir()
    return tmp_path / "films"


def test_models_have_the_names_of_their_folders_or_those_given(folder: Path) -> None:
    assert command.named([str(folder), f"other={folder}"]) == {"films": folder, "other": folder}
    assert command.named(["minilm", "own=minilm"]) == {"minilm": default_model(), "own": default_model()}
    (folder.parent / "latest").symlink_to(folder)
    assert list(command.named([str(folder.parent / "latest"), f"{folder}/../films"])) == ["latest", "films"]
    odd = folder / "a=b"
    odd.mkdir()
    assert command.named([f"name={odd}"]) == {"name": odd}
    with pytest.raises(ArgumentError, match="a model's name must consist of letters, digits"):
        command.named([str(odd)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "nothing: the folder does not exist"),
        (["a=nothing"], "nothing: the folder does not exist"),
        (["films", "films=films"], "two models have the name 'films'"),
        (["a/b=films"], "a model's name must consist of letters, digits"),
        (["films", "--backend", "onnx", "--workers", "0"], "workers must be at least 1"),
        (["films", "--port", "8001", "--grpc-port", "8001"], "must differ"),
        (["films", "--grpc-port", "on"], "expected 0 to 65535, or off. Received: 'on'"),
        (["films", "--grpc-port", "70000"], "expected 0 to 65535, or off. Received: '70000'"),
        (["films", "--token-file", "none"], "--token-file none: cannot be read: No such file"),
        (["films", "--token-file", "short"], "expected one line of at least 16"),
        (["films", "--tls-cert", "short"], "TLS needs a certificate and its key"),
        (["films", *FREE, "--tls-cert", "short", "--tls-key", "short"], "expected a certificate and its key in PEM"),
        (["films", *FREE, "--host", "192.0.2.1"], "--host 192.0.2.1: this address does not belong to this machine"),
        (["films", *FREE, "--host", "no such host"], "--host no such host: this address does not exist"),
    ],
)
def test_what_cannot_be_served_gets_one_sentence(run: Run, folder: Path, arguments: list[str], says: str) -> None:
    (folder.parent / "short").write_text("abc", encoding="utf-8")
    refused(run("serve", *arguments), says)


@pytest.mark.parametrize("option", ["--port", "--grpc-port", "--tensorflow-port"])
def test_a_port_in_use_is_named(run: Run, folder: Path, option: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        arguments = dict(zip(FREE[::2], FREE[1::2], strict=True)) | {option: port}
        result = run("serve", folder, *(word for pair in arguments.items() for word in pair))
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"headwise: {option} {port}: the port is in use. Choose another one, or 0 for any free port\n"
    )

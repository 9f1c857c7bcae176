"""The command itself: its options, its exit codes, and what it must not import."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import headwise
from headwise.cli import command, main
from headwise.tasks.kinds import BUILT_IN

from .conftest import Run


def options(verb: click.Command) -> dict[str, list[str]]:
    return {name: parameter.opts for parameter in verb.params if (name := parameter.name)}


def test_the_verbs_and_their_options_are_pinned() -> None:
    assert sorted(command.commands) == [
        *("compare", "doctor", "evaluate", "export", "gradcheck", "plot", "predict", "serve", "stats", "train", "view"),
        *("watch", "worksheet"),
    ]
    assert options(command) == {"version": ["--version"], "debug": ["--debug"]}
    assert options(command.commands["view"]) == {
        "texts": ["texts"],
        "files": ["--file"],
        "model": ["--model"],
        "layers": ["--layers"],
        "out": ["--out"],
        "serve": ["--serve"],
        "port": ["--port"],
        "open_page": ["--open"],
        "debug": ["--debug"],
    }
    assert options(command.commands["stats"]) == {
        "path": ["path"],
        "layers": ["--layers"],
        "csv_path": ["--csv"],
        "json_path": ["--json"],
        "verify": ["--verify"],
        "debug": ["--debug"],
    }
    assert options(command.commands["plot"]) == {
        "path": ["path"],
        "kind": ["--kind"],
        "layer": ["--layer"],
        "head": ["--head"],
        "layers": ["--layers"],
        "call": ["--call"],
        "example": ["--example"],
        "rows": ["--rows"],
        "cols": ["--cols"],
        "row": ["--row"],
        "col": ["--col"],
        "scale": ["--scale"],
        "values": ["--values"],
        "hide_sink": ["--hide-sink"],
        "cmap": ["--cmap"],
        "title": ["--title"],
        "width": ["--width"],
        "out": ["--out"],
        "debug": ["--debug"],
    }
    assert options(command.commands["watch"]) == {
        "texts": ["texts"],
        "files": ["--file"],
        "model": ["--model"],
        "out": ["--out"],
        "layers": ["--layers"],
        "patterns": ["--only"],
        "max_length": ["--max-length"],
        "generate": ["--generate"],
        "values": ["--values"],
        "dtype": ["--dtype"],
        "debug": ["--debug"],
    }
    assert options(command.commands["compare"]) == {
        "first": ["first"],
        "second": ["second"],
        "settings": ["--set"],
        "settings_other": ["--set-other"],
        "stated": ["--spec"],
        "stated_other": ["--spec-other"],
        "json_path": ["--json"],
        "debug": ["--debug"],
    }
    assert options(command.commands["doctor"]) == {
        "target": ["target"],
        "settings": ["--set"],
        "model": ["--model"],
        "texts": ["--input"],
        "stated": ["--spec"],
        "isolate": ["--isolate"],
        "timeout": ["--timeout"],
        "memory": ["--memory"],
        "json_path": ["--json"],
        "sarif_path": ["--sarif"],
        "debug": ["--debug"],
    }
    assert options(command.commands["gradcheck"]) == {
        "target": ["target"],
        "settings": ["--set"],
        "stated": ["--spec"],
        "samples": ["--samples"],
        "everything": ["--all"],
        "seed": ["--seed"],
        "json_path": ["--json"],
        "debug": ["--debug"],
    }
    assert options(command.commands["evaluate"]) == {
        "run": ["run"],
        "data": ["data"],
        "json_path": ["--json"],
        "debug": ["--debug"],
    }
    assert options(command.commands["predict"]) == {
        "run": ["run"],
        "inputs": ["inputs"],
        "context": ["--context"],
        "file": ["--file"],
        "out": ["--out"],
        "chunk": ["--chunk"],
        "restart": ["--restart"],
        "engine": ["--engine"],
        "workers": ["--workers"],
        "ray_address": ["--ray-address"],
        "debug": ["--debug"],
    }
    assert options(command.commands["export"]) == {
        "source": ["source"],
        "kind": ["--to"],
        "out": ["--out"],
        "attention": ["--attention"],
        "precision": ["--precision"],
        "weights": ["--weights"],
        "tolerance": ["--tolerance"],
        "examples": ["--examples"],
        "aoti": ["--aoti"],
        "no_speed": ["--no-speed"],
        "debug": ["--debug"],
    }
    assert options(command.commands["serve"]) == {
        "models": ["models"],
        "backend": ["--backend"],
        "precision": ["--precision"],
        "workers": ["--workers"],
        "threads": ["--threads"],
        "max_batch": ["--max-batch"],
        "max_delay_ms": ["--max-delay-ms"],
        "max_queue": ["--max-queue"],
        "max_tokens": ["--max-tokens"],
        "max_body": ["--max-body"],
        "timeout": ["--timeout"],
        "host": ["--host"],
        "port": ["--port"],
        "open_inference_port": ["--grpc-port"],
        "tensorflow_port": ["--tensorflow-port"],
        "token_file": ["--token-file"],
        "tls_cert": ["--tls-cert"],
        "tls_key": ["--tls-key"],
        "drain": ["--drain"],
        "debug": ["--debug"],
    }
    assert options(command.commands["worksheet"]) == {
        "kind": ["--kind"],
        "tokens": ["--tokens"],
        "memory": ["--memory"],
        "mask": ["--mask"],
        "heads": ["--heads"],
        "kv_heads": ["--kv-heads"],
        "positions": ["--positions"],
        "latents": ["--latents"],
        "model": ["--model"],
        "seed": ["--seed"],
        "out": ["--out"],
        "show": ["--show"],
        "debug": ["--debug"],
    }


# What every task has, and what it has besides; how a flag is written follows from the name (tests/cli/test_train.py).
OF_EVERY_TASK = [
    *("accelerator", "batch_size", "batch_tokens", "clip", "compile", "config", "data", "debug", "devices", "dim"),
    *("dropout", "epochs", "heads", "lr", "monitor_every", "nodes", "out", "patience", "precision", "print_config"),
    *("resume", "schedule", "seed", "strategy", "time_limit", "validation", "validation_share", "warmup"),
    "weight_decay",
]
_TEXT_TO_TEXT = [
    *("beams", "copies", "encoder_lr", "ffn_dim", "label_smoothing", "layers", "length_penalty", "max_source_length"),
    *("max_target_length", "model", "no_repeat"),
    *("positions", "sample", "shared_vocabulary", "source", "target", "temperature", "top_k", "top_p", "vocab_size"),
]
OF_A_TASK = {
    "classify": [
        *("label", "latents", "layers", "lowercase", "max_length", "model", "new_characters", "pooling", "text"),
        *("text_pair", "vocab_size", "word_dropout"),
    ],
    "answer": [
        *(
            "answer",
            "answer_start",
            "context",
            "layers",
            "lowercase",
            "max_length",
            "model",
            "new_characters",
            "overlap",
        ),
        *("question", "question_length", "vocab_size"),
    ],
    "translate": _TEXT_TO_TEXT,
    "summarize": _TEXT_TO_TEXT,
    "reply": sorted([*_TEXT_TO_TEXT, "dialogue"]),
    "forecast": [
        *("centre", "context", "horizon", "interpolate", "layers", "loss", "model", "patch_length", "quantiles"),
        *("season", "series", "sort", "standardise", "stride", "target", "time"),
    ],
    "match": [
        *("channels", "fusion_layers", "gallery", "image", "image_layers", "image_size", "lowercase", "max_length"),
        *("model", "patch_size", "rerank", "shared_dim", "text", "text_layers", "vocab_size"),
    ],
    "language": [
        *("block", "layers", "lowercase", "mask_share", "model", "objective", "sample", "temperature", "text", "top_k"),
        *("top_p", "vocab_size", "write"),
    ],
}


@pytest.mark.parametrize("word", BUILT_IN)
def test_the_options_of_every_task_are_pinned(word: str) -> None:
    assert sorted(task_options(word)) == sorted([*OF_EVERY_TASK, *OF_A_TASK[word]])


def task_options(word: str) -> dict[str, list[str]]:
    train = command.commands["train"]
    assert isinstance(train, click.Group)
    task = train.get_command(click.Context(train), word)
    assert task is not None
    return options(task)


def test_version(run: Run) -> None:
    assert run("--version").out == f"headwise {headwise.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.code == 0
    assert "view" in result.out


def test_an_unknown_verb_is_one_line(run: Run) -> None:
    result = run("veiw")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("headwise: No such command 'veiw'.")
    assert len(result.err.splitlines()) == 1


def test_debug_adds_a_traceback(run: Run) -> None:
    assert "Traceback" not in run("view", "--file", "nowhere").err
    for arguments in (("--debug", "view"), ("view", "--debug")):
        lines = run(*arguments, "--file", "nowhere").err.splitlines()
        assert lines[0].startswith("Traceback")
        assert lines[-1].startswith("headwise: --file nowhere")


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.cli.view.read_texts", interrupt)
    assert main(["view", "the cat"]) == 130
    assert capsys.readouterr().err.strip() == "headwise: interrupted"


def test_an_error_of_another_module_says_where(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shadow.py").write_text(
        "import socket\n\nsocket.create_connection(('127.0.0.1', 1))\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("headwise.cli.view.read_texts", lambda *_: importlib.import_module("shadow"))
    said = run("view", "the cat").err
    assert said.startswith("headwise: [Errno 111] Connection refused (raised in ")
    assert f"{tmp_path / 'shadow.py'}, line 3; --debug shows" in said


def test_a_command_line_that_lacks_an_option_is_refused_in_sentences(run: Run) -> None:
    assert "Choose from: onnx, torch, savedmodel. See 'headwise export --help'.\n" in run("export", "bad").err


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headwise", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


def test_a_terminal_without_unicode_is_no_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-m", "headwise", "view", "--file", "née.txt"]
    done = subprocess.run(program, env=environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"headwise: --file n?e.txt")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--help"], {}),
        (["--version"], {}),
        (["view", "--help"], {}),
        (["plot", "--help"], {}),
        (["stats", "--help"], {}),
        (["watch", "--help"], {}),
        (["doctor", "--help"], {}),
        (["compare", "--help"], {}),
        (["gradcheck", "--help"], {}),
        (["worksheet", "--help"], {}),
        (["train", "--help"], {}),
        (["train", "classify", "--help"], {}),
        (["train", "forecast", "--help"], {}),
        (["predict", "--help"], {}),
        (["evaluate", "--help"], {}),
        (["export", "--help"], {}),
        (["serve", "--help"], {}),
        ([], {"_HEADWISE_COMPLETE": "bash_complete", "COMP_WORDS": "headwise v", "COMP_CWORD": "1"}),
    ],
    ids=[
        "help",
        "version",
        "view help",
        "plot help",
        "stats help",
        "watch help",
        "doctor help",
        "compare help",
        "gradcheck help",
        "worksheet help",
        "train help",
        "train classify help",
        "train forecast help",
        "predict help",
        "evaluate help",
        "export help",
        "serve help",
        "completion",
    ],
)
def test_answers_without_importing_anything_heavy(arguments: list[str], environment: dict[str, str]) -> None:
    """Torch alone takes over a second, and help must answer at once."""
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr))\n"
        "from headwise.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    heavy = {"torch", "numpy", "rich", "tokenizers", "safetensors", "huggingface_hub", "transformers"}
    heavy |= {"pytorch_lightning", "datasets", "torchmetrics", "sacrebleu", "pandas"}
    heavy |= {"onnx", "onnxruntime", "tensorflow", "keras", "kserve", "fastapi", "grpc", "ray"}
    assert heavy.isdisjoint(done.stderr.split())


def test_completion_knows_verbs_and_options() -> None:
    def complete(words: str) -> str:
        environment = {"_HEADWISE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        program = [sys.executable, "-c", "from headwise.cli import main; main()"]
        return subprocess.run(
            program, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        ).stdout

    assert complete("headwise v") == "plain,view\n"
    assert complete("headwise view --l") == "plain,--layers\n"

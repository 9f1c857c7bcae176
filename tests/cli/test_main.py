"""The command itself: its options, its exit codes, and what it must not import."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import headwise
from headwise.cli import command, main
from headwise.native.library import instruction_set, missing
from headwise.tasks.kinds import BUILT_IN

from .conftest import Run, refused


def options(verb: click.Command) -> str:
    return " ".join(option for parameter in verb.params for option in parameter.opts)


VERBS = {  # beside --lang and --debug, which all have
    "bench": "--length --queries --heads --kv-heads --head-dim --dtype --mask --training --rounds --json",
    "compare": "first second --set --set-other --spec --spec-other --json",
    "doctor": "targets --set --model --input --changed --spec --isolate --timeout --memory --notes --json --sarif",
    "embed": "--file --out --column --model --prompt --prompt-name --dtype --batch-tokens --chunk --restart --engine "
    "--workers --ray-address --encoding",
    "evaluate": "run data --json --encoding",
    "export": "source --to --out --attention --precision --weights --tolerance --examples --aoti --no-speed --encoding",
    "gradcheck": "target --set --spec --samples --all --seed --json",
    "plot": "path --kind --layer --head --layers --call --example --rows --cols --row --col --scale --values "
    "--hide-sink --cmap --title --width --out",
    "profile": "--model --file --dataset --column --lines --length --batch --max-tokens --examples --layers --out "
    "--engine --workers --ray-address --encoding",
    "predict": "run inputs --context --file --out --chunk --restart --engine --workers --ray-address --encoding",
    "serve": "models --backend --precision --workers --threads --max-batch --max-delay-ms --max-queue "
    "--max-tokens --host --max-body --timeout --port --grpc-port --tensorflow-port --token-file --tls-cert "
    "--tls-key --drain",
    "stats": "path --layers --row --csv --json --verify",
    "view": "texts --file --model --image --layers --out --serve --port --open --encoding --with-model --dtype",
    "watch": "texts --file --model --out --layers --only --max-length --generate --values --dtype --statistics-only "
    "--lines --chunk --encoding",
    "worksheet": "records --layer --head --row --col --call --example "
    "--kind --tokens --memory --mask --heads --kv-heads --positions --latents --model --seed --out --show",
}


def test_the_verbs_and_their_options_are_pinned() -> None:
    assert command.commands.keys() == {*VERBS, "train"}
    assert options(command) == "--version --lang --debug"
    assert {name: sorted(options(command.commands[name]).split()) for name in VERBS} == {
        name: sorted([*pinned.split(), "--lang", "--debug"]) for name, pinned in VERBS.items()
    }


def test_version(run: Run) -> None:
    used = instruction_set() or f"off: {missing()}"
    assert run("--version").out == f"headwise {headwise.__version__} (native kernels: {used})\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.code == 0
    assert "view" in result.out


def test_what_is_unknown_or_missing_is_one_line(run: Run) -> None:
    refused(run("veiw"), "headwise: No such command 'veiw'.")

    assert "Choose from: onnx, torch, savedmodel. See 'headwise export --help'.\n" in run("export", "bad").err


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


HEAVY = {
    *("torch", "numpy", "rich", "tokenizers", "safetensors", "huggingface_hub", "transformers", "pytorch_lightning"),
    *("datasets", "torchmetrics", "sacrebleu", "pandas", "onnx", "onnxruntime", "tensorflow", "keras", "kserve"),
    *("fastapi", "uvicorn", "grpc", "ray"),
}
# Runs some commands, and prints what they imported on standard error.
IMPORTED = (
    "import contextlib, sys, atexit\n"
    "atexit.register(lambda: print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr))\n"
    "from headwise.cli import main\n"
    "for arguments in sys.argv[1:] or [None]:\n"
    "    with contextlib.suppress(SystemExit):\n"
    "        main(arguments and arguments.split())\n"
)


def test_answers_without_importing_anything_heavy() -> None:
    """Torch alone takes over a second, and help must answer at once."""
    asked = ["--version", "--help", *(f"{verb} --help" for verb in command.commands)]
    asked += [f"train {task} --help" for task in BUILT_IN]
    completing = {"_HEADWISE_COMPLETE": "bash_complete", "COMP_WORDS": "headwise v", "COMP_CWORD": "1"}
    for arguments, environment in ((asked, {}), ([], completing)):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.count("Usage: ") == max(0, len(arguments) - 1)
        assert done.stdout
        assert HEAVY.isdisjoint(done.stderr.split()), f"imported by one of {arguments}"


@pytest.mark.parametrize(
    "arguments",
    [
        *("view nope.hw", "stats nope.hw", "plot nope.hw", "profile --file nope.txt", "watch --file nope.txt"),
        *("doctor nope.py:A", "doctor --nope", "compare nope.py:A torch", "gradcheck nope.py:A", "bench --nope"),
        *("evaluate nope a.csv", "predict nope text", "embed --file nope.csv --out a.npy", "train classify --nope"),
        "serve nope",
    ],
)
def test_a_mistake_is_told_without_importing_anything_heavy(arguments: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", IMPORTED, arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)
    said, imported = done.stderr.splitlines()
    assert said.startswith("headwise: ")
    assert "nope" in said
    assert HEAVY.isdisjoint(imported.split())


def test_help_groups_the_verbs_and_cuts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("--help").out.splitlines()
        assert max(map(len, lines)) <= width
        titles = [line for line in lines if line.endswith(":")]
        assert titles == ["Options:", "Look:", "Check:", "Build:", "Train:", "Ship:"]
        listed = {
            line.split()[0]: line for line in lines if line.startswith("  ") and line.split()[0] in command.commands
        }
        assert listed.keys() == command.commands.keys()
        for name, line in listed.items():
            assert line.endswith("."), line
            assert "…" not in line
            assert "..." not in line
            assert line.endswith(str(command.commands[name].short_help))
    (tried,) = (line for line in lines if "Try: " in line)
    assert shlex.split(tried)[1:3] == ["headwise", "view"]


def test_a_verb_in_no_group_is_listed_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.commands, "more", click.Command("more", short_help="One more."))
    assert "Others:\n  more       One more." in run("--help").out


def test_completion_knows_verbs_and_options() -> None:
    program = [sys.executable, "-c", "from headwise.cli import main; main()"]
    for words, known in (("headwise v", "plain,view\n"), ("headwise view --la", "plain,--layers\nplain,--lang\n")):
        asked = {"_HEADWISE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(program, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
        assert done.stdout == known

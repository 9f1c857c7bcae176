"""`headwise train`: options made from dataclasses, a YAML file of them, what is printed, and how a run goes on."""

from __future__ import annotations

import json
import signal
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from headwise.cli import task_options
from headwise.cli.train import _is_first, train
from headwise.tasks.kinds import BUILT_IN, find_options
from headwise.tasks.options.train import make

from .conftest import Run, contents, refused

TINY = [
    *("--model", "scratch", "--dim", "16", "--layers", "1", "--heads", "2", "--vocab-size", "100"),
    "--monitor-every=0",
]


def reviews(folder: Path, rows: int = 24) -> Path:
    """Sentences whose label is one of their words."""
    lines = [f"a {word} film number {row},{word}" for row in range(rows // 2) for word in ("good", "bad")]
    path = folder / "reviews.csv"
    path.write_text("sentence,label\n" + "\n".join(lines) + "\n,good\n", encoding="utf-8")
    return path


def test_the_tasks_are_listed_if_none_is_named(run: Run) -> None:
    result = run("train")
    assert result.code == 2
    assert result.err.startswith("Usage: headwise train [OPTIONS] TASK DATA [OPTIONS]...\n")


@pytest.mark.parametrize("word", BUILT_IN)
def test_every_option_of_a_task_is_one_of_the_command(word: str) -> None:
    command = train.get_command(None, word)  # type: ignore[arg-type]
    flags = {name: each.opts[0] for each in command.params if (name := each.name)}
    options = [field.name for field in fields(find_options(word))]
    assert set(flags) == {*options, "data", "out", "resume", "config", "print_config", "lang", "debug"}
    assert all(flags[name] == f"--{name.replace('_', '-')}" for name in options)


@pytest.mark.parametrize("word", BUILT_IN)
def test_what_print_config_prints_changes_nothing(run: Run, tmp_path: Path, word: str) -> None:
    result = run("train", word, "--print-config")
    assert (result.code, result.err) == (0, "")
    (tmp_path / "run.yaml").write_text(result.out, encoding="utf-8")
    options = find_options(word)
    assert make(options, task_options.read_config(tmp_path / "run.yaml", word, options)) == make(options, {})
    assert run("train", word, "--config", "run.yaml", "--print-config").out == result.out
    said = result.out.replace("\n# ", " ")
    assert all(field.metadata["help"] in said for field in fields(options))


def test_values_of_the_file_and_the_line_meet(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "text: 1\nprecision: 32\nlr: 1e-3\ncompile: true\nlowercase: false\n", encoding="utf-8"
    )
    result = run(
        "train", "classify", "--config", "run.yaml", "--epochs", "7", "--no-compile", "--lr", "0.5", "--print-config"
    )
    printed = yaml.safe_load(result.out)
    assert printed["text"] == "1"
    assert printed["precision"] == "32"
    assert (printed["lr"], printed["epochs"]) == (0.5, 7)
    assert (printed["compile"], printed["lowercase"]) == (False, False)
    read = task_options.read_config(tmp_path / "run.yaml", "classify", find_options("classify"))
    assert read == {"text": "1", "precision": "32", "lr": 1e-3, "compile": True, "lowercase": False}


def test_options_that_may_be_given_several_times(run: Run) -> None:
    printed = run("train", "forecast", "--target", "OT", "--target", "HULL", "--print-config").out
    assert "\ntarget: [OT, HULL]\n" in printed
    assert yaml.safe_load(printed)["quantiles"] == ["0.1", "0.5", "0.9"]


def test_help_tells_defaults_and_keeps_the_sections_apart(run: Run) -> None:
    out = run("train", "classify", "--help").out
    own, common = out.index("Options of classify:"), out.index("Options of every task:")
    assert own < out.index("--text COLUMN") < common < out.index("--validation-share X")
    assert out.count("--text COLUMN") == out.count("--validation-share X") == 1
    assert "[default: label]" in out
    assert "[mean|cls]" in out
    assert "headwise train classify reviews.csv" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("classify", "DATA is missing: expected, for example, reviews.csv"),
        ("clasify", "No such task 'clasify', did you mean 'classify'? Expected one of: classify, answer,"),
        ("classify x.csv --epoch 3", "No such option '--epoch'"),
        ("classify x.csv --epochs 0", "headwise: --epochs: expected at least 1. Received: epochs=0"),
        ("classify x.csv --epochs x", "'x' is not a valid integer"),
        ("classify x.csv --precision 8", "'8' is not one of '32', 'bf16-mixed', '16-mixed'"),
        ("classify nowhere.csv", "nowhere.csv: no such file"),
        ("classify reviews.csv", "there is no column 'text'. The columns are: 'sentence', 'label'"),
        ("classify --resume", "classify-run is not there"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, arguments: str, says: str) -> None:
    reviews(tmp_path)
    refused(run("train", *arguments.split()), says)
    assert [path.name for path in tmp_path.iterdir()] == ["reviews.csv"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("epoch: 3", "unknown option 'epoch', did you mean 'epochs'? Expected one of: text, text_pair, label"),
        ("epochs: many", "epochs: expected int. Received: epochs='many' (str)"),
        ("- epochs", "expected lines such as epochs: 3. Received: list"),
        ("a: [", "not YAML: while parsing"),
        ("a: " + "[" * 2000, "not YAML: it is nested too deeply"),
        ("task: match\noptions: {}", "expected the options of classify. Received: task='match'"),
        (None, "no such file or directory. Expected a YAML file of options"),
    ],
)
def test_a_file_of_options_that_makes_no_sense_is_one_line(
    run: Run, tmp_path: Path, config: str | None, says: str
) -> None:
    if config is not None:
        (tmp_path / "run.yaml").write_text(config, encoding="utf-8")
    result = run("train", "classify", "x.csv", "--config", "run.yaml")
    refused(result, f"headwise: --config run.yaml: {says}")


def test_a_run_from_a_file_to_its_scores(run: Run, tmp_path: Path) -> None:
    reviews(tmp_path)
    result = run("train", "classify", "reviews.csv", "--text", "sentence", "--epochs", "2", "--out", "my run", *TINY)
    assert result.code == 0, result.err
    assert "reviews.csv: 24 rows\nnote: 1 row left out: no text (line 26)\n" in result.err
    lines = result.out.splitlines()
    assert lines[0] == "validation, 2 rows"
    assert lines[1].split()[:3] == ["score", "model", "always"]
    assert lines[-3:] == [
        "  headwise predict 'my run' \"a text\"",
        "  headwise evaluate 'my run' test.csv",
        "  headwise view 'my run' \"a text\"",
    ]
    scores = json.loads((tmp_path / "my run" / "scores.json").read_text(encoding="utf-8"))
    assert f"{scores['scores']['accuracy']:.4f}" in result.out
    kept = yaml.safe_load((tmp_path / "my run" / "config.yaml").read_text(encoding="utf-8"))
    assert (kept["options"]["text"], kept["options"]["epochs"]) == ("sentence", 2)

    before = contents(tmp_path)
    again = run("train", "classify", "reviews.csv", "--text", "sentence", "--out", "my run", *TINY)
    assert again.code == 2
    assert "my run holds a run already" in again.err
    assert "--resume" in again.err
    assert contents(tmp_path) == before
    # The options of a run are those of another.
    same = run("train", "classify", "--config", "my run/config.yaml", "--print-config").out
    assert yaml.safe_load(same) == kept["options"]


def test_of_several_processes_one_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "any", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for rank, speaks in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        assert _is_first() is speaks


def test_an_interrupted_run_says_how_it_goes_on_and_goes_on(run: Run, tmp_path: Path) -> None:
    reviews(tmp_path)
    arguments = ("train", "classify", "reviews.csv", "--text", "sentence", "--epochs", "2", "--batch-size", "8", *TINY)
    told: list[str] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "headwise.tasks.training.callbacks.progress.Telling.on_train_epoch_start", lambda *_: _interrupt_once(told)
        )
        result = run(*arguments)
    assert result.code == 130
    assert result.err.splitlines()[-1].startswith("headwise: stopped after batch 1 of")
    assert "--resume" in result.err.splitlines()[-1]
    assert not (tmp_path / "classify-run" / "weights.safetensors").exists()

    result = run("train", "classify", "--resume")
    assert result.code == 0, result.err
    assert "epoch 2/2" in result.err
    assert "Wrote classify-run" in result.out


def _interrupt_once(told: list[str]) -> None:
    if not told:
        told.append("once")
        signal.raise_signal(signal.SIGINT)

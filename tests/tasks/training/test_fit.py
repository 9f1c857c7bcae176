"""A training from data to trained task: the same however it is cut into pieces; what stops it is told in a sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pytorch_lightning import Trainer
from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError, DtypeError, FileError, TrainingError, TrainingInterrupted
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch
from headwise.tasks.training.callbacks import last
from headwise.tasks.training.callbacks.seeding import Seeding
from headwise.tasks.training.callbacks.signals import Interrupt

from .mini_task import MiniTask, sequences

ROWS = 40
OPTIONS: dict[str, Any] = {"accelerator": "cpu", "monitor_every": 0, "dropout": 0.3, "keep_optimizer": True}


def fit(out: Path | None = None, rows: Any = ROWS, **options: Any) -> MiniTask:
    return MiniTask.fit(rows, out=out, **{**OPTIONS, **options})


def last_weights(folder: Path) -> dict[str, Tensor]:
    return dict(torch.load(folder / "last.ckpt", weights_only=True)["state_dict"])


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    fit(folder)
    return folder


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch without `keep_optimizer`."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    fit(folder, epochs=1, keep_optimizer=False)
    return folder


@pytest.fixture
def before_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """before_step(n, call): have `fit` call something before its n-th step."""

    def arrange(step: int, what: Any) -> None:
        class Arranged(Seeding):
            def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
                super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
                if trainer.global_step + 1 == step:
                    what()

        monkeypatch.setattr("headwise.tasks.training.fit.Seeding", Arranged)

    return arrange


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class TestWhatComesOut:
    def test_the_task_is_in_eval_mode_and_has_the_scores_of_what_was_held_out(self) -> None:
        task = fit()
        assert not any(module.training for module in task.modules())
        assert task.scores.count == 10
        assert task.predict([[3, 1]])[0].keys() == {"first"}

    def test_the_same_seed_gives_the_same_weights_with_and_without_a_folder(self, whole: Path) -> None:
        assert_equal(fit().state_dict(), MiniTask.load(whole).state_dict())

    def test_another_seed_gives_others(self, whole: Path) -> None:
        assert not torch.equal(fit(seed=1).model.output.weight, MiniTask.load(whole).model.output.weight)  # type: ignore[union-attr]

    def test_the_callers_random_numbers_are_left_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        fit(epochs=1)
        assert torch.equal(torch.rand(1), expected)

    def test_the_monitor_disturbs_nothing(self, whole: Path, tmp_path: Path) -> None:
        fit(tmp_path / "run", monitor_every=2)
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))

    def test_it_learns(self) -> None:
        task = fit(rows=160, epochs=12, dropout=0.0, lr=0.05, batch_tokens=256)
        assert task.scores.values["accuracy"] > 0.9

    def test_validation_may_be_given(self) -> None:
        task = MiniTask.fit(ROWS, validation=sequences(7, seed=1), **OPTIONS)
        assert task.scores.count == 7

    def test_without_validation_the_last_weights_are_kept(self, tmp_path: Path) -> None:
        task = fit(tmp_path / "run", validation_share=0.0)
        assert task.scores is None
        assert_equal(dict(task.state_dict()), last_weights(tmp_path / "run"))
        assert not (tmp_path / "run" / "scores.json").exists()


class TestTheGradient:
    def test_it_is_that_of_the_mean_over_all_terms(self) -> None:
        """One step of SGD's size cannot be seen through AdamW, so the loss of the step is compared itself."""
        task = MiniTask.learn(sequences(4), MiniTask.options_type(dropout=0.0))  # type: ignore[arg-type]
        task._trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        batch = task.collate(task.encode(sequences(4)))
        total, count = task.loss(batch)
        found = task.training_step(dict(batch), 0)
        assert count == 4
        torch.testing.assert_close(found["loss"], total / 4)

    def test_a_process_without_examples_counts_for_nothing(self) -> None:
        task = MiniTask.learn(sequences(4), MiniTask.options_type())  # type: ignore[arg-type]
        task._trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        found = task.training_step({**task.collate([[1, 2]]), "empty": True}, 0)
        assert (float(found["loss"].detach()), float(found["terms"])) == (0.0, 0.0)
        found["loss"].backward()


class TestResume:
    @pytest.mark.parametrize("step", [1, 3, 7])
    def test_a_run_that_was_interrupted_ends_with_the_weights_of_one_that_was_not(
        self, step: int, whole: Path, tmp_path: Path, before_step: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before_step(step, interrupt)
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(TrainingInterrupted, match=r"stopped after batch \d+ of \d+ of epoch \d.*resume=True"):
            fit(tmp_path / "run")
        assert signal.getsignal(signal.SIGINT) is handler
        monkeypatch.undo()
        task = MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))
        assert_equal(dict(task.state_dict()), dict(MiniTask.load(whole).state_dict()))
        for name in ("curve.csv", "scores.json"):
            assert (tmp_path / "run" / name).read_text() == (whole / name).read_text()

    def test_an_interrupt_in_the_last_step_of_an_epoch_waits_for_its_validation(
        self, whole: Path, tmp_path: Path, before_step: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = torch.load(whole / "last.ckpt", weights_only=True)["global_step"]
        first = next(
            int(line.split(",")[1])
            for line in (whole / "curve.csv").read_text().splitlines()[1:]
            if line.startswith("1,")
        )
        assert first < steps
        before_step(first, interrupt)
        with pytest.raises(TrainingInterrupted, match="stopped after epoch 1,"):
            fit(tmp_path / "run")
        assert (tmp_path / "run" / "weights.safetensors").exists()
        monkeypatch.undo()
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))
        assert (tmp_path / "run" / "curve.csv").read_text() == (whole / "curve.csv").read_text()

    @pytest.mark.parametrize("left", [b"", b"other", None])
    def test_best_weights_that_are_gone_are_told_before_the_first_step(
        self, left: bytes | None, tmp_path: Path, before_step: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before_step(7, interrupt)
        with pytest.raises(TrainingInterrupted, match="epoch 2"):
            fit(tmp_path / "run")
        weights = tmp_path / "run" / "weights.safetensors"
        weights.unlink() if left is None else weights.write_bytes(left)
        before_step(8, lambda *_: pytest.fail("a step was taken"))
        with pytest.raises(FileError, match=r"run.weights\.safetensors"):
            MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)

    def test_a_mean_of_the_curve_that_was_interrupted_is_over_both_parts(
        self, tmp_path: Path, before_step: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headwise.tasks.training.callbacks.curve._POINTS", 1)  # one mean for the whole epoch
        fit(tmp_path / "whole", epochs=1)
        before_step(2, interrupt)
        with pytest.raises(TrainingInterrupted):
            fit(tmp_path / "run", epochs=1)
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert (tmp_path / "run" / "curve.csv").read_text() == (tmp_path / "whole" / "curve.csv").read_text()

    def test_time_limit_ends_the_run_with_a_validation_and_it_can_go_on(
        self, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        task = fit(tmp_path / "run", time_limit=0.0)
        said = capsys.readouterr().err
        assert re.search(r"^epoch 1/\d+, up to batch 1 of \d+: ", said, re.MULTILINE), said
        assert re.search(r"the time limit is over: stopped after batch 1 of .*: resume with resume=True", said), said
        assert task.scores is not None
        assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == 1
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True, time_limit=10.0)
        said = capsys.readouterr().err
        assert re.search(r"^epoch 1/\d+, resumed after batch 1: .*\nepoch 2/\d+: ", said, re.MULTILINE), said
        assert "time limit" not in said
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))
        assert (tmp_path / "run" / "curve.csv").read_text() == (whole / "curve.csv").read_text()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"lr": 0.5}, r"cannot be resumed with another lr: expected 0\.01. Received: 0\.5"),
            ({"rows": 41}, r"with other training data: expected 30 rows .*. Received: 31 rows"),
            ({"validation": 7}, r"with other training data: expected 30 rows of"),
            ({"out": "nowhere"}, r"nowhere is not there: .*--out .*nowhere` writes one"),
        ],
    )
    def test_it_goes_on_with_nothing_else(self, arguments: dict[str, Any], message: str, whole: Path) -> None:
        arguments = {"out": whole, **arguments}
        with pytest.raises(CheckpointError, match=message):
            MiniTask.fit(arguments.pop("rows", ROWS), resume=True, **arguments)

    def test_it_needs_a_folder(self) -> None:
        with pytest.raises(ArgumentError, match="resume: expected out"):
            MiniTask.fit(ROWS, resume=True)

    def test_a_run_that_was_killed_before_its_first_epoch_begins_again(
        self, whole: Path, tmp_path: Path, before_step: Any
    ) -> None:
        def kill() -> None:
            raise RuntimeError("power failure")

        before_step(1, kill)
        with pytest.raises(RuntimeError):
            fit(tmp_path / "run")
        with pytest.raises(CheckpointError, match=r"before its first epoch ended. Begin it again: resume=True"):
            MiniTask.load(tmp_path / "run")
        before_step(-1, kill)
        with pytest.raises(CheckpointError, match="cannot be resumed with another lr"):
            MiniTask.fit(ROWS, out=tmp_path / "run", resume=True, lr=0.5)
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))


class TestEnd:
    """After the last epoch the weights are kept once: the checkpoint, which has them too, goes."""

    def test_the_weights_are_kept_once_and_nothing_is_left_to_resume(
        self, ended: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert not (ended / "last.ckpt").exists()
        files = {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()}
        again = MiniTask.fit(ROWS, out=ended, resume=True)
        assert "ended has ended, and nothing is left to do" in capsys.readouterr().err
        assert_equal(dict(again.state_dict()), dict(MiniTask.load(ended).state_dict()))
        assert again.scores is not None
        assert files == {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()}

    def test_a_run_that_its_time_limit_stopped_has_not_ended(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        fit(folder, time_limit=0.0, keep_optimizer=False)
        assert (folder / "last.ckpt").exists()
        MiniTask.fit(ROWS, out=folder, resume=True, time_limit=10.0)
        assert not (folder / "last.ckpt").exists()

    def test_more_epochs_need_the_optimizer(self, ended: Path) -> None:
        said = r"has ended without keep_optimizer .*expected last\.ckpt.* Received: none.*model='.*ended' \(--model "
        with pytest.raises(CheckpointError, match=said):
            MiniTask.fit(ROWS, out=ended, resume=True, epochs=2)

    def test_with_the_optimizer_kept_it_goes_on_to_more_epochs(self, whole: Path, tmp_path: Path) -> None:
        fit(tmp_path / "run", epochs=1, schedule="constant", warmup=0.0)
        with pytest.raises(CheckpointError, match=r"fewer epochs: expected at least 3\. Received: 2"):
            MiniTask.fit(ROWS, out=whole, resume=True, epochs=2)
        task = MiniTask.fit(ROWS, out=tmp_path / "run", resume=True, epochs=2, keep_optimizer=False)
        assert_equal(task.state_dict(), fit(epochs=2, schedule="constant", warmup=0.0).state_dict())
        config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
        assert (config["options"]["epochs"], config["ended"] >= config["begun"]) == (2, True)
        assert not (tmp_path / "run" / "last.ckpt").exists()

    def test_the_first_step_of_more_epochs_has_the_rate_of_the_new_schedule(self, tmp_path: Path) -> None:
        """Linear without warmup: step n of N, from 0, has the rate lr · (1 - n / N)."""
        fit(tmp_path / "run", epochs=1, schedule="linear", warmup=0.0, lr=0.01)
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True, epochs=2)
        rows = [line.split(",") for line in (tmp_path / "run" / "curve.csv").read_text().splitlines()[1:]]
        first, total = sum(float(row[0]) <= 1 for row in rows), len(rows)
        expected = [
            *(0.01 * (1 - n / first) for n in range(first)),
            *(0.01 * (1 - n / total) for n in range(first, total)),
        ]
        assert [float(row[3]) for row in rows] == pytest.approx(expected)

    @pytest.mark.parametrize("moment", ["write_files", "unlink"])
    def test_a_run_that_is_killed_at_its_end_loses_nothing(self, moment: str, whole: Path, tmp_path: Path) -> None:
        """Killed when the best weights are written: before config.yaml says so, or before the checkpoint is removed."""
        code = f"""
import os, signal
from pathlib import Path
from headwise.tasks.training import run
from tests.tasks.training.test_fit import OPTIONS, ROWS, MiniTask
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if {moment!r} == "unlink":
    unlink = Path.unlink
    Path.unlink = lambda path, **how: kill() if path.name == "last.ckpt" else unlink(path, **how)
else:
    write = run.write_files
    run.write_files = lambda folder, task, config, scores=None: kill() if scores else write(folder, task, config)
MiniTask.fit(ROWS, out={str(tmp_path / "run")!r}, **{{**OPTIONS, "keep_optimizer": False}})
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (tmp_path / "run" / "last.ckpt").exists()
        assert_equal(dict(MiniTask.load(tmp_path / "run").state_dict()), dict(MiniTask.load(whole).state_dict()))
        task = MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert_equal(dict(task.state_dict()), dict(MiniTask.load(whole).state_dict()))
        assert task.scores is not None
        assert not (tmp_path / "run" / "last.ckpt").exists()


class TestStopping:
    def test_a_second_ctrl_c_stops_at_once(self, tmp_path: Path, before_step: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)

        def twice() -> None:
            interrupt()
            interrupt()

        before_step(2, twice)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run")
        assert not (tmp_path / "run" / "last.ckpt").exists()
        assert signal.getsignal(signal.SIGINT) is handler

    def test_where_nothing_is_kept_the_first_ctrl_c_stops_at_once(self, before_step: Any) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
        try:
            before_step(2, interrupt)
            with pytest.raises(KeyboardInterrupt):
                fit()
        finally:
            signal.signal(signal.SIGINT, before)

    def test_early_stopping_waits_for_as_many_epochs_as_it_is_told(self, tmp_path: Path) -> None:
        fit(tmp_path / "run", lr=1e-30, epochs=9, patience=2)  # never better than after the first epoch
        lines = (tmp_path / "run" / "curve.csv").read_text().splitlines()
        assert sum(not line.endswith(",") for line in lines[1:]) == 3
        before = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"]
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)  # it has ended, and does not go on
        assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == before

    def test_a_loss_that_is_not_finite(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loss = MiniTask.loss

        def broken(task: MiniTask, batch: Batch) -> tuple[Tensor, Tensor]:
            total, count = loss(task, batch)
            worse = task.training and task.trainer.current_epoch == 1 and task.trainer.fit_loop.batch_idx == 1
            return (total * float("nan") if worse else total), count

        monkeypatch.setattr(MiniTask, "loss", broken)
        with pytest.raises(TrainingError, match=r"NaN at batch 2 of epoch 2"):
            fit(tmp_path / "run")
        for tensor in (
            *last_weights(tmp_path / "run").values(),
            *MiniTask.load(tmp_path / "run").state_dict().values(),
        ):
            assert tensor.isfinite().all()

    def test_weights_that_are_not_finite_show_in_the_validation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loss = MiniTask.loss

        def broken(task: MiniTask, batch: Batch) -> tuple[Tensor, Tensor]:
            total, count = loss(task, batch)
            return (total if task.training else total * float("inf")), count

        monkeypatch.setattr(MiniTask, "loss", broken)
        with pytest.raises(TrainingError, match="infinite in the validation after epoch 1"):
            fit()

    def test_a_validation_with_nothing_to_predict_is_no_matter_of_the_learning_rate(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loss = MiniTask.loss

        def empty(task: MiniTask, batch: Batch) -> tuple[Tensor, Tensor]:
            total, count = loss(task, batch)
            return (total, count) if task.training else (total * 0, count * 0)

        monkeypatch.setattr(MiniTask, "loss", empty)
        with pytest.raises(ArgumentError, match=r"validation rows with something to predict.*\. Received: none"):
            fit()


class TestFullDisk:
    def test_the_old_checkpoint_stays(self, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = Path.write_bytes
        written = 0

        def full(path: Path, data: Any) -> int:
            nonlocal written
            if "last.ckpt" in path.name:
                written += 1
                if written == 2:
                    write(path, bytes(data)[: len(data) // 2])
                    raise OSError(28, "No space left on device")
            return write(path, data)

        monkeypatch.setattr(last.Path, "write_bytes", full)
        with pytest.raises(FileError, match=r"cannot write .*last\.ckpt: No space left on device\. .* intact"):
            fit(tmp_path / "run")
        assert sorted(path.name for path in (tmp_path / "run").glob(".*")) == []
        monkeypatch.undo()
        MiniTask.fit(ROWS, out=tmp_path / "run", resume=True)
        assert_equal(last_weights(tmp_path / "run"), last_weights(whole))

    def test_the_old_weights_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sync, synced = os.fsync, 0

        def full(file: int) -> None:  # when all is written, but not yet in the place of the old file
            nonlocal synced
            synced += "weights" in os.readlink(f"/proc/self/fd/{file}")
            if synced == 2:
                raise OSError(28, "No space left on device")
            sync(file)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match=r"cannot write .*weights\.safetensors.*No space left"):
            fit(tmp_path / "run", validation_share=0.0)
        monkeypatch.undo()
        MiniTask.load(tmp_path / "run")


@pytest.mark.slow
def test_training_does_not_import_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
from tests.tasks.training.test_fit import MiniTask, ROWS
MiniTask.fit(ROWS, out={str(tmp_path / "run")!r}, accelerator="cpu", epochs=1)
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "oneDNN" in done.stderr) == (0, False), done.stderr
    assert list((tmp_path / "run" / "tensorboard").iterdir())


class TestWhatIsRefused:
    def test_a_folder_that_holds_a_run(self, whole: Path) -> None:
        with pytest.raises(ArgumentError, match=r"holds a run already: resume it \(resume=True"):
            fit(whole)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"learning_rate": 1.0}, ArgumentError, "unknown option 'learning_rate'"),
            ({"lr": "high"}, DtypeError, "lr: expected float. Received: lr='high'"),
            ({"epochs": 0}, ArgumentError, "epochs: expected at least 1. Received: epochs=0"),
            ({"validation_share": 1.0}, ArgumentError, "validation_share: expected less than 1"),
            ({"lr": float("nan")}, ArgumentError, "lr: expected a finite number. Received: lr=nan"),
            ({"lr": -1}, ArgumentError, "lr: expected at least 0. Received: lr=-1.0"),
            ({"warmup": 7}, ArgumentError, "warmup: expected at most 1. Received: warmup=7.0"),
            ({"time_limit": float("inf")}, ArgumentError, "time_limit: expected a finite number"),
            ({"validation_share": 0.0, "patience": 1}, ArgumentError, "patience=1: expected data to validate on"),
        ],
    )
    def test_options(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            fit(**options)

    def test_a_score_that_nobody_logs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MiniTask, "best_by", ("accuracy", "max"))
        with pytest.raises(ArgumentError, match="best_by: expected a score that the task logs: validation_loss"):
            fit()

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="cannot make the run folder"):
            fit(tmp_path / "file" / "run")

    def test_data_without_examples_and_nothing_is_left_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MiniTask, "encode", lambda task, data, targets=True: [])
        with pytest.raises(ArgumentError, match="there is no example in it to learn from"):
            fit(tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("scores", "losses", "best"),
    [
        ((0.1, 0.9, 0.5), (1.0, 1.0, 1.0), 1),
        ((0.9, 0.9, 0.9), (0.3, 0.2, 0.4), 1),
        ((0.2, 0.1, 0.1), (0.3, 0.2, 0.1), 0),
    ],
)
def test_best_weights_are_those_of_the_best_score_and_of_equal_ones_those_of_the_least_loss(
    scores: tuple[float, ...], losses: tuple[float, ...], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: list[dict[str, Tensor]] = []

    def scored(task: MiniTask) -> None:
        after.append({name: tensor.clone() for name, tensor in task.state_dict().items()})
        task.log_dict({"rightness": scores[task.current_epoch], "validation_loss": losses[task.current_epoch]})

    monkeypatch.setattr(MiniTask, "validation_step", lambda task, batch, batch_idx: None)
    monkeypatch.setattr(MiniTask, "on_validation_epoch_end", scored)
    monkeypatch.setattr(MiniTask, "best_by", ("rightness", "max"))
    assert_equal(dict(fit().state_dict()), after[best])


def test_scores_are_kept_as_json(whole: Path) -> None:
    task = MiniTask.load(whole)
    again: Scores = task.evaluate(sequences(ROWS).split(0.25, 0)[1])
    kept = json.loads((whole / "scores.json").read_text())
    (few,) = kept.pop("notes")
    assert few.startswith("the validation part has only 10 rows")
    assert kept == again.to_json()


def test_mean_loss_is_over_all_terms(whole: Path) -> None:
    task, data = MiniTask.load(whole), sequences(9, seed=3)
    examples = task.encode(data)
    with torch.no_grad():
        each = [float(task.loss(task.collate([example]))[0]) for example in examples]
    assert task.mean_loss(examples) == pytest.approx(sum(each) / 9, rel=1e-5)


def test_without_signals_in_another_thread() -> None:
    import threading

    failed: list[BaseException] = []

    def run() -> None:
        try:
            with Interrupt(waits=True) as interrupted:
                assert not interrupted.asked
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_what_is_not_used_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MiniTask, "remarks", lambda task, data: (f"1 of {len(data)} is long",))
    fit(tmp_path / "run", rows=sequences(ROWS).without({3: "no token"}), epochs=1)
    left_out, long, few, epoch, *_ = capsys.readouterr().err.splitlines()
    assert (left_out, long) == ("note: 1 row left out: no token (row 3)", "note: 1 of 29 is long")
    assert few.startswith("note: the validation part has only 10 rows")
    assert epoch.startswith("epoch 1")
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["training"]
    assert kept["left_out"] == ["1 row left out: no token (row 3)"]
    assert kept["remarks"] == ["1 of 29 is long"]

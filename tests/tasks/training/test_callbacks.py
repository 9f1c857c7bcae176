"""What a person sees of a training: lines, a bar on a terminal, a table and a picture."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headwise.errors import FileError
from headwise.tasks.training import curve
from headwise.tasks.training.curve import Row

from .mini_task import MiniTask

OPTIONS: dict[str, Any] = {"accelerator": "cpu", "monitor_every": 0, "epochs": 2}


def test_each_epoch_is_a_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    MiniTask.fit(40, **OPTIONS)
    out, err = capsys.readouterr()
    assert out == ""
    _, *lines, best = err.splitlines()  # first a note: few rows to validate on
    assert len(lines) == 2
    assert re.fullmatch(r"the best weights are those of epoch [12]: validation loss \d\.\d+", best)
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(
            rf"epoch {number}/2: loss \d\.\d+, validation loss \d\.\d+, \d+\.\d s, [\d,]+ tokens/s", line
        )


def test_a_terminal_has_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()

    def terminal(**options: Any) -> Console:
        return Console(file=shown, force_terminal=True, width=100, highlight=options["highlight"])

    monkeypatch.setattr("headwise.tasks.training.callbacks.progress.make_console", terminal)
    monkeypatch.setattr("headwise.tasks.training.callbacks.progress._EVERY", 0.0)
    MiniTask.fit(40, **OPTIONS)
    assert "tokens/s" in shown.getvalue()
    assert "epoch 2/2: loss" in shown.getvalue()
    assert "━" in shown.getvalue()


def test_the_bar_goes_when_the_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "headwise.tasks.training.callbacks.progress.make_console",
        lambda **options: Console(file=shown, force_terminal=True),
    )

    def broken(task: MiniTask, batch: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(MiniTask, "loss", broken)
    with pytest.raises(ValueError, match="broken"):
        MiniTask.fit(40, **OPTIONS)
    assert shown.getvalue().endswith("\x1b[2K")  # its line is erased


def noted_labels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of what matplotlib draws from now on."""
    from matplotlib.axes import Axes

    marked: list[str] = []
    plot = Axes.plot

    def noted(axes: Axes, *arguments: Any, **options: Any) -> Any:
        marked.append(str(options.get("label")))
        return plot(axes, *arguments, **options)

    monkeypatch.setattr(Axes, "plot", noted)
    return marked


class TestCurve:
    ROWS = (
        Row(0.5, 5, 2.0, 0.1),
        Row(1.0, 10, 1.5, 0.2, {"validation_loss": 1.6, "accuracy": 0.25}),
        Row(2.0, 20, 1.25, 0.1, {"validation_loss": 1.7, "accuracy": 0.75}),
    )

    def test_the_table_has_empty_cells_where_there_was_no_validation(self, tmp_path: Path) -> None:
        curve.write(self.ROWS, tmp_path / "curve.csv")
        assert (tmp_path / "curve.csv").read_text().splitlines() == [
            "epoch,step,loss,learning_rate,validation_loss,accuracy",
            "0.5,5,2,0.1,,",
            "1,10,1.5,0.2,1.6,0.25",
            "2,20,1.25,0.1,1.7,0.75",
        ]

    @pytest.mark.parametrize(
        ("best", "expected"),
        [
            (("accuracy", 2), ["best: 0.75, epoch 2"]),
            (("validation_loss", 1), ["best: 1.6, epoch 1"]),
            (("accuracy", 0), []),  # there was no validation
            (None, []),
        ],
    )
    def test_the_picture_marks_the_best_epoch(
        self, best: tuple[str, int] | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        marked = noted_labels(monkeypatch)
        curve.draw(self.ROWS, tmp_path / "curve.png", best)
        assert [label for label in marked if label.startswith("best")] == expected
        assert (tmp_path / "curve.png").stat().st_size > 10_000

    def test_it_is_the_epoch_of_the_best_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of equal scores the validation loss decides."""
        marked = noted_labels(monkeypatch)
        monkeypatch.setattr(MiniTask, "best_by", ("accuracy", "max"))

        def validate(task: MiniTask, batch: Any, batch_idx: int) -> None:
            task.log_loss(*task.loss(batch))
            task.log("accuracy", 0.5, on_step=False, on_epoch=True, batch_size=1)

        monkeypatch.setattr(MiniTask, "validation_step", validate)
        MiniTask.fit(40, out=tmp_path / "run", **{**OPTIONS, "epochs": 3})
        (said,) = re.findall(r"best weights are those of epoch (\d)", capsys.readouterr().err)
        assert said != "1"
        assert [label.rpartition(" ")[2] for label in marked if label.startswith("best")] == [said]

    def test_what_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"cannot write .*curve\.csv: No such file"):
            curve.write(self.ROWS, tmp_path / "nowhere" / "curve.csv")
        with pytest.raises(FileError, match=r"cannot write .*curve\.png: No such file"):
            curve.draw(self.ROWS, tmp_path / "nowhere" / "curve.png", None)

    def test_a_long_epoch_has_at_most_twenty_points(self, tmp_path: Path) -> None:
        MiniTask.fit(60, out=tmp_path / "run", batch_size=1, **{**OPTIONS, "epochs": 1})  # 45 steps: every third
        with (tmp_path / "run" / "curve.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["step"]) for row in rows] == [*range(3, 46, 3)]

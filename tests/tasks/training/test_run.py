"""The run folder: what is in it, and what is said of one that cannot be used."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save
from torch import nn

import headwise
from headwise import tasks
from headwise.errors import ArgumentError, CheckpointError
from headwise.files import SUMS
from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training.callbacks.last import AtomicCheckpoints
from headwise.tasks.training.folder import alone
from headwise.tasks.training.weights import load_weights, save_weights

from .mini_task import MiniTask


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    MiniTask.fit(40, out=folder, accelerator="cpu", monitor_every=3, epochs=2, keep_optimizer=True)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy, to damage."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def change_config(folder: Path, **changes: Any) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    (folder / SUMS).unlink(missing_ok=True)


def test_it_holds_all_that_is_needed_to_use_the_model_again(whole: Path) -> None:
    names = "checksums.json config.yaml curve.csv curve.png last.ckpt scores.json tensorboard weights.safetensors"
    assert sorted(path.name for path in whole.iterdir()) == names.split()


def test_the_config_says_what_was_done_with_what(whole: Path) -> None:
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["task"] == "mini"
    assert config["options"]["epochs"] == 2
    assert config["options"]["seed"] == 0
    assert config["state"] == {"tokens": 5}
    assert config["data"]["training"] == {"name": "the sequences", "rows": 30, "fingerprint": "40-0"}
    assert config["data"]["validation"]["rows"] == 10
    assert config["versions"]["headwise"] == headwise.__version__
    assert config["versions"]["torch"] == torch.__version__


def test_the_curve_has_the_validation_at_the_ends_of_epochs(whole: Path) -> None:
    with (whole / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "step", "loss", "learning_rate", "validation_loss"]
    assert [row["epoch"] for row in rows if row["validation_loss"]] == ["1", "2"]
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1))
    assert (whole / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_has_what_the_heads_did(whole: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    heads = {
        f"attention/encoder.layers.0.attention/{what}/head_{head}"
        for what in ("entropy", "first_visible")
        for head in (0, 1)
    }
    assert heads <= tags
    assert {"attention/gradient_norm", "loss", "learning_rate", "validation_loss"} <= tags
    assert [event.step for event in events.Scalars("attention/gradient_norm")][:2] == [0, 3]


class TestWhatCannotBeLoaded:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="nowhere is not there: expected a run folder"):
            tasks.load(tmp_path / "nowhere")

    def test_a_file(self, whole: Path) -> None:
        with pytest.raises(CheckpointError, match=r"curve\.csv is a file: expected a run folder"):
            tasks.load(whole / "curve.csv")

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"is no run folder: there is no config\.yaml in it"):
            tasks.load(tmp_path)

    def test_a_run_of_another_task(self, folder: Path) -> None:
        change_config(folder, task="forecast")
        with pytest.raises(CheckpointError, match="is a run of 'forecast': expected one of 'mini'"):
            MiniTask.load(folder)

    def test_a_task_that_headwise_does_not_have(self, folder: Path) -> None:
        change_config(folder, task="mimi")
        with pytest.raises(CheckpointError, match=r"expected a run of one of classify, answer, .*Received: 'mimi'"):
            tasks.load(folder)

    @pytest.mark.parametrize("text", ["a: [", "- 1", "task: mini", "task: mini\noptions: 1\nstate: {}"])
    def test_a_config_that_is_not_one(self, text: str, folder: Path) -> None:
        (folder / "config.yaml").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.yaml") as caught:
            MiniTask.load(folder)
        assert "\n" not in str(caught.value)

    def test_options_of_another_version(self, folder: Path) -> None:
        change_config(folder, options={"wings": 3})
        with pytest.raises(CheckpointError, match=r"config\.yaml: unknown option 'wings'"):
            MiniTask.load(folder)

    def test_a_state_that_lacks_something(self, folder: Path) -> None:
        change_config(folder, state={})
        with pytest.raises(CheckpointError, match=r"cannot restore the mini of .*KeyError: 'tokens'"):
            MiniTask.load(folder)

    @pytest.mark.parametrize("size", [0, 4, 100, 1000])
    def test_weights_that_were_cut_short(self, size: int, folder: Path) -> None:
        path = folder / "weights.safetensors"
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(CheckpointError, match=r"cannot read .*weights\.safetensors, it is damaged or cut short"):
            MiniTask.load(folder)

    def test_a_last_checkpoint_that_was_cut_short(self, folder: Path) -> None:
        path = folder / "last.ckpt"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(CheckpointError, match=r"cannot read .*last\.ckpt, it is damaged or cut short") as caught:
            MiniTask.fit(40, out=folder, resume=True)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["weights.safetensors", "config.yaml", "scores.json", "last.ckpt"])
    def test_flipped_bytes(self, name: str, folder: Path) -> None:
        """Whatever is in the file: nothing is loaded that was not written."""
        before = MiniTask.load(folder).state_dict()
        path = folder / name
        written = path.read_bytes()
        places, refused = range(9, len(written), max(1, len(written) // 40)), 0
        for place in places:
            path.write_bytes(written[:place] + bytes([written[place] ^ 4]) + written[place + 1 :])
            try:
                if name == "last.ckpt":
                    found = AtomicCheckpoints().load_checkpoint(path, weights_only=True)["state_dict"]
                else:
                    found = MiniTask.load(folder).state_dict()
            except CheckpointError as error:
                refused += name in str(error) and "\n" not in str(error)
            else:
                assert name == "last.ckpt"  # between its records are bytes that nobody reads
                assert all(torch.equal(found[each], before[each]) for each in before)
        assert refused >= (20 if name == "last.ckpt" else len(places))

    def test_a_folder_without_checksums(self, folder: Path) -> None:
        """Such folders were written before 0.3.0, and their weights had no metadata."""
        (folder / SUMS).unlink()
        path = folder / "weights.safetensors"
        path.write_bytes(save(load_file(path)))
        MiniTask.load(folder)

    def test_weights_of_another_size(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        change_config(folder, options={**config["options"], "dim": 6})
        with pytest.raises(CheckpointError, match=r"does not fit .*: expected \[6, 6\], received|expected \["):
            MiniTask.load(folder)

    def test_a_run_that_was_stopped_before_it_had_weights(self, folder: Path) -> None:
        (folder / "weights.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"stopped before its first validation\. Go on with it: resume=True"):
            MiniTask.load(folder)


class TestLock:
    """Two trainings in one folder would leave the weights of one and the curve of the other."""

    def test_a_second_training_is_refused_before_it_reads(self, tmp_path: Path) -> None:
        with alone(tmp_path / "a" / "run"), pytest.raises(ArgumentError, match="another training is running in this"):
            MiniTask.fit("never read", out=tmp_path / "a" / "run")
        assert list(tmp_path.iterdir()) == []

    def test_nor_is_a_run_resumed_twice(self, folder: Path) -> None:
        before = sorted(folder.iterdir())
        with alone(folder), pytest.raises(ArgumentError, match="another training is running in this folder"):
            MiniTask.fit(40, out=folder, resume=True)
        assert sorted(folder.iterdir()) == before

    def test_a_lock_that_was_deleted_by_its_owner_is_no_lock(self, tmp_path: Path) -> None:
        with alone(tmp_path):
            (tmp_path / ".lock").unlink()
            with alone(tmp_path):
                pass


class TestWeights:
    def test_tied_weights_are_saved_once_and_are_one_again(self, tmp_path: Path) -> None:
        def tied() -> nn.ModuleDict:
            module = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "output": nn.Linear(2, 3, bias=False)})
            module["output"].weight = module["embedding"].weight
            return module

        before, after = tied(), tied()
        save_weights(before.state_dict(), tmp_path / "w.safetensors")
        load_weights(after, tmp_path / "w.safetensors")
        assert torch.equal(before["output"].weight, after["output"].weight)  # type: ignore[arg-type]
        assert list(load_file(tmp_path / "w.safetensors")) == ["embedding.weight"]

    def test_every_tensor_must_be_there_and_no_other(self, tmp_path: Path) -> None:
        save_weights(nn.Linear(2, 2).state_dict(), tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError, match="bias is unknown"):
            load_weights(nn.Linear(2, 2, bias=False), tmp_path / "w.safetensors")
        save_weights(nn.Linear(2, 2, bias=False).state_dict(), tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError, match="bias is missing"):
            load_weights(nn.Linear(2, 2), tmp_path / "w.safetensors")


def test_options_are_written_as_plain_yaml(whole: Path) -> None:
    text = (whole / "config.yaml").read_text()
    assert "!!" not in text
    assert TrainOptions(**{name: value for name, value in yaml.safe_load(text)["options"].items() if name != "dim"})

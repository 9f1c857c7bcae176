"""Two processes that train together learn what one learns, and when one of them fails the others do not stay behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headwise.errors import ArgumentError, TrainingError, TrainingInterrupted
from headwise.tasks.options.train import TrainOptions, make
from headwise.tasks.scores import Scores
from headwise.tasks.training import processes, strategies
from headwise.tasks.training.sharding import FullyShard

from .mini_task import MiniTask

ROWS = 45
# A clip that cuts every gradient: by the norm of the whole of it, or the weights would differ.
SAME: dict[str, Any] = {
    "accelerator": "cpu",
    "dropout": 0.0,
    "clip": 0.1,
    "lr": 2e-3,
    "epochs": 2,
    "batch_tokens": 96,
    "keep_optimizer": True,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs. "one" is that of one process; "one_stopped" was stopped after its first step."""
    folder = tmp_path_factory.mktemp("runs")
    MiniTask.fit(ROWS, out=folder / "one", **SAME)
    MiniTask.fit(ROWS, out=folder / "one_stopped", time_limit=1e-9, **SAME)
    return folder


@pytest.fixture(scope="module")
def ddp(runs: Path) -> MiniTask:
    return MiniTask.fit(ROWS, out=runs / "ddp", devices=2, strategy="ddp", monitor_every=2, **SAME)


@pytest.fixture(scope="module")
def fsdp(runs: Path) -> Path:
    """Runs of two processes that see what torchrun would tell them: "fsdp", "fsdp_stopped", and "one_stopped" again."""
    processes.together(2, as_under_torchrun, runs)
    return runs


def as_under_torchrun(runs: Path) -> None:
    rank = os.environ["RANK"]

    class Counted(FullyShard):
        def configure_ddp(self) -> None:
            super().configure_ddp()
            task = self.lightning_module
            shares = {name: list(each.to_local().shape) for name, each in task.named_parameters()}  # type: ignore[operator]
            (runs / f"shares{rank}.json").write_text(json.dumps(shares))

    strategies.FullyShard = Counted  # type: ignore[misc]
    task = MiniTask.fit(ROWS, out=runs / "fsdp", strategy="fsdp", **SAME)
    (runs / f"accuracy{rank}").write_text(str(scores_of(task).values["accuracy"]))
    MiniTask.fit(ROWS, out=runs / "fsdp_stopped", strategy="fsdp", time_limit=1e-9, **SAME)
    MiniTask.fit(ROWS, out=runs / "one_stopped", strategy="fsdp", time_limit=None, resume=True)


def scores_of(task: MiniTask) -> Scores:
    assert task.scores is not None
    return task.scores


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Within 1e-5, but for the biases of keys: they add one number to all scores of a row, which softmax cancels.
    Their gradient is rounding alone, and Adam divides it by its own size."""
    assert sorted(one) == sorted(other)
    for name in one:
        wanted, found = one[name], other[name]
        if name.endswith("qkv.bias"):
            wanted, found = (torch.cat([each.chunk(3)[0], each.chunk(3)[2]]) for each in (wanted, found))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "weights.safetensors")


def losses(run: Path) -> list[list[float]]:
    """Step, training loss, learning rate and validation loss, of every row of curve.csv that has all."""
    rows = [line.split(",") for line in (run / "curve.csv").read_text().splitlines()[1:]]
    return [[float(cell) for cell in row[1:]] for row in rows if all(row)]


# --- The same as one process ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ddp_learns_what_one_process_learns(runs: Path, ddp: MiniTask) -> None:
    assert_same(weights(runs / "one"), weights(runs / "ddp"))
    assert len(losses(runs / "ddp")) == 2  # epochs
    torch.testing.assert_close(losses(runs / "ddp"), losses(runs / "one"), rtol=1e-5, atol=1e-5)


def test_what_fit_returns_is_the_run_of_the_processes(runs: Path, ddp: MiniTask) -> None:
    one = MiniTask.load(runs / "one")
    tokens = [[1, 2, 3], [4, 5], [2, 2, 2, 2]]
    assert ddp.predict(tokens) == one.predict(tokens)
    assert_same(weights(runs / "one"), dict(ddp.state_dict()))
    assert scores_of(ddp).to_json() == json.loads((runs / "one" / "scores.json").read_text())


def test_a_run_folder_of_two_processes_has_what_that_of_one_has(runs: Path, ddp: MiniTask, fsdp: Path) -> None:
    names = {path.name for path in (runs / "one").iterdir()}
    assert "weights.safetensors" in names
    for run in ("ddp", "fsdp"):
        assert {path.name for path in (runs / run).iterdir()} == names


def test_fsdp_learns_what_one_process_learns(fsdp: Path) -> None:
    assert_same(weights(fsdp / "one"), weights(fsdp / "fsdp"))
    torch.testing.assert_close(losses(fsdp / "fsdp"), losses(fsdp / "one"), rtol=1e-5, atol=1e-5)


def test_fsdp_keeps_a_share_of_every_weight_in_each_process(fsdp: Path) -> None:
    whole = weights(fsdp / "fsdp")
    shares = [json.loads((fsdp / f"shares{rank}.json").read_text()) for rank in range(2)]
    assert sorted(shares[0]) == sorted(whole)
    for name, tensor in whole.items():
        first, second = shares[0][name], shares[1][name]
        assert [first[0] + second[0], *first[1:]] == list(tensor.shape), name
        assert first[0] == -(-tensor.shape[0] // 2), name


def test_every_process_gets_the_scores_of_the_first(fsdp: Path) -> None:
    wanted = json.loads((fsdp / "fsdp" / "scores.json").read_text())["scores"]["accuracy"]
    assert [float((fsdp / f"accuracy{rank}").read_text()) for rank in range(2)] == [wanted, wanted]


def test_a_run_that_stopped_under_fsdp_goes_on_in_one_process(fsdp: Path) -> None:
    MiniTask.fit(ROWS, out=fsdp / "fsdp_stopped", resume=True, strategy="auto", time_limit=None)
    assert_same(weights(fsdp / "one"), weights(fsdp / "fsdp_stopped"))
    assert_same_moments(fsdp / "one", fsdp / "fsdp_stopped")


def test_a_run_that_stopped_in_one_process_goes_on_under_fsdp(fsdp: Path) -> None:
    assert_same(weights(fsdp / "one"), weights(fsdp / "one_stopped"))
    assert_same_moments(fsdp / "one", fsdp / "one_stopped")


def assert_same_moments(one: Path, other: Path) -> None:
    ours, theirs = (torch.load(run / "last.ckpt", weights_only=True)["optimizer_states"][0] for run in (one, other))
    assert ours["param_groups"] == theirs["param_groups"]
    torch.testing.assert_close(theirs["state"], ours["state"], rtol=0, atol=1e-5)


# --- Processes --------------------------------------------------------------------------------------------------------


def test_what_a_process_raises_on_purpose_is_raised_here() -> None:
    with pytest.raises(ArgumentError, match="unknown option 'wings'"):
        processes.together(1, make, TrainOptions, {"wings": 2})


def test_a_process_that_fails_ends_those_that_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    source = f"""if 1:
        import os, pathlib, time
        mine = pathlib.Path({str(tmp_path)!r}) / os.environ["RANK"]
        if mine.name == "1":
            while not mine.with_name("0").exists():
                time.sleep(0.01)
            raise OSError("the cable is out")
        mine.with_suffix(".part").write_text(str(os.getpid()))
        mine.with_suffix(".part").rename(mine)
        time.sleep(60)  # until it is ended
    """
    with pytest.raises(TrainingError, match="process 1 of 2 failed: OSError: the cable is out") as raised:
        processes.together(2, exec, source)
    assert "Traceback" in str(raised.value.__cause__)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "0").read_text()), 0)


def test_a_killed_process_is_named_rather_than_what_it_makes_the_others_say() -> None:
    source = """if 1:
        import os
        from headwise.errors import ParallelError
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        raise ParallelError("lost the others")
    """
    with pytest.raises(TrainingError, match="process 1 of 2 was ended by signal 9"):
        processes.together(2, exec, source)


def test_ctrl_c_reaches_the_processes_and_what_they_say_of_it_comes_back(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    source = f"""if 1:
        import pathlib, time
        from headwise.errors import TrainingInterrupted
        try:
            pathlib.Path({str(ready)!r}).touch()
            time.sleep(60)  # until it is interrupted
        except KeyboardInterrupt:
            raise TrainingInterrupted("stopped, and saved")
    """

    def press() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(TrainingInterrupted, match="stopped, and saved"):
        processes.together(1, exec, source)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_class_of_the_script_itself_is_refused() -> None:
    class Mine:
        pass

    Mine.__module__ = "__main__"
    with pytest.raises(ArgumentError, match=r"Mine is defined in the script or notebook itself.*a module of its own"):
        processes.together(2, print, Mine)


# --- What is asked of the machine -------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without GPUs, and nobody who started this process together with others."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    return monkeypatch


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "fsdp"}, "strategy: 'fsdp' shares a model among several devices, but there is 1; pass devices=2"),
        ({"accelerator": "gpu"}, "accelerator: 'gpu' was asked for, but torch sees no GPU; pass 'cpu', or 'auto'"),
        ({"nodes": 2}, "nodes: 2 machines need torchrun or srun"),
        ({"devices": 2, "strategy": "fsdp", "precision": "16-mixed"}, "'16-mixed' does not go with strategy 'fsdp'"),
        ({"devices": 2, "strategy": "fsdp", "average": 0.9}, "average: .* not go with strategy 'fsdp'.*Received: 0.9"),
    ],
)
def test_what_cannot_be_is_refused(alone: pytest.MonkeyPatch, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        MiniTask.fit(ROWS, **options)


def test_more_gpus_than_there_are_is_refused(alone: pytest.MonkeyPatch) -> None:
    alone.setattr(torch.cuda, "is_available", lambda: True)
    alone.setattr(torch.cuda, "device_count", lambda: 2)
    strategies.check(TrainOptions(devices=2))
    with pytest.raises(ArgumentError, match=r"devices: expected at most 2, the GPUs that torch sees. Received: 3"):
        strategies.check(TrainOptions(devices=3))


def test_several_processes_are_started_unless_somebody_did(alone: pytest.MonkeyPatch) -> None:
    assert not strategies.several(TrainOptions())
    assert strategies.several(TrainOptions(devices=2))
    under_torchrun(alone, rank=1, devices=2, nodes=1)
    assert not strategies.several(TrainOptions(devices=2))


def test_the_first_process_is_the_one_that_writes(alone: pytest.MonkeyPatch) -> None:
    assert strategies.first()
    under_torchrun(alone, rank=0, devices=2, nodes=1)
    assert strategies.first()
    under_torchrun(alone, rank=1, devices=2, nodes=1)
    assert not strategies.first()


def test_torchrun_says_how_many_there_are(alone: pytest.MonkeyPatch) -> None:
    under_torchrun(alone, rank=5, devices=4, nodes=2)
    made = strategies.make(TrainOptions())
    assert (made["devices"], made["num_nodes"], made["accelerator"]) == (4, 2, "cpu")
    strategies.check(TrainOptions(devices=4, nodes=2))
    with pytest.raises(ArgumentError, match="devices: torchrun started 4, but 3 were asked for; leave devices out"):
        strategies.check(TrainOptions(devices=3))


def test_torchrun_needs_a_folder_that_the_processes_share(alone: pytest.MonkeyPatch) -> None:
    under_torchrun(alone, rank=0, devices=2, nodes=1)
    with pytest.raises(ArgumentError, match="out: the processes that torchrun or srun started share a run folder"):
        MiniTask.fit(ROWS)


def test_srun_says_how_many_there_are_and_a_job_without_it_is_one_process(alone: pytest.MonkeyPatch) -> None:
    for name, value in {"NTASKS": 6, "NNODES": 3, "PROCID": 4, "LOCALID": 0, "NODEID": 2, "JOB_NAME": "train"}.items():
        alone.setenv(f"SLURM_{name}", str(value))
    assert not strategies.launched()
    assert strategies.make(TrainOptions())["devices"] == 1
    alone.setenv("SLURM_STEP_NUM_TASKS", "6")
    with pytest.raises(ArgumentError, match=r"srun: expected a job with --ntasks-per-node"):
        strategies.make(TrainOptions())
    alone.setenv("SLURM_NTASKS_PER_NODE", "2")
    made = strategies.make(TrainOptions())
    assert (made["devices"], made["num_nodes"]) == (2, 3)
    assert not strategies.first()


def under_torchrun(patch: pytest.MonkeyPatch, *, rank: int, devices: int, nodes: int) -> None:
    world = {"RANK": rank, "LOCAL_RANK": rank % devices, "WORLD_SIZE": devices * nodes, "LOCAL_WORLD_SIZE": devices}
    for name, value in {**world, "TORCHELASTIC_RUN_ID": "some"}.items():
        patch.setenv(name, str(value))

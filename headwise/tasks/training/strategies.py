"""The arguments of Lightning's Trainer for devices, machines and precision.

Every process knows the whole batch and takes its share of the examples, so that a run is the same on any number of
processes. `ddp` keeps the whole model in each process, `fsdp` a part of every weight.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Literal, NamedTuple, cast

import torch
from pytorch_lightning.plugins import MixedPrecision, Precision
from pytorch_lightning.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training.sharding import FullyShard, Replicate


def make(options: TrainOptions) -> dict[str, Any]:
    """Return the Trainer's arguments for accelerator, devices, nodes, strategy and precision (precision as a plugin).

    Raises:
        ArgumentError: an option asks for what this machine, or the launcher of this process, does not have.
    """
    check(options)
    world, accelerator = _world(options), _accelerator(options)
    plugins: list[Any] = [world.environment]
    if options.precision != "32":
        # The plugin is made here: by name, Lightning would use bfloat16 if float16 is requested on a CPU.
        mixed = MixedPrecision if options.precision == "16-mixed" else _Bfloat16
        plugins.append(mixed(options.precision, accelerator))
    strategy: Any = "auto"
    if world.devices * world.nodes > 1:
        kind = FullyShard if options.strategy == "fsdp" else Replicate
        strategy = kind(options.sequence_processes)
    return {
        "accelerator": accelerator,
        "devices": world.devices,
        "num_nodes": world.nodes,
        "strategy": strategy,
        "plugins": plugins,
        "use_distributed_sampler": False,
    }


def check(options: TrainOptions) -> None:
    """Refuse options that cannot be used here, before the data are read, which may take long.

    Raises:
        ArgumentError: an option asks for what this machine, or the launcher of this process, does not have.
    """
    world, accelerator = _world(options), _accelerator(options)
    if (processes := world.devices * world.nodes) % options.sequence_processes:
        raise ArgumentError(
            f"context_parallel: expected a divisor of the number of processes, {processes}. Received: "
            f"context_parallel={options.sequence_processes}"
        )
    if options.strategy == "fsdp" and world.devices * world.nodes == 1:
        raise ArgumentError(
            "strategy: 'fsdp' shares a model among several devices, but there is 1; pass devices=2 or more, or 'auto'"
        )
    if options.strategy == "fsdp" and options.precision == "16-mixed":
        raise ArgumentError("precision: '16-mixed' does not go with strategy 'fsdp'; expected 'bf16-mixed' or '32'")
    if options.strategy == "fsdp" and options.average:
        raise ArgumentError(
            f"average: the mean of the weights does not go with strategy 'fsdp', where no process has all of them; "
            f"expected 0. Received: {options.average:g}"
        )
    if accelerator == "mps" and world.devices * world.nodes > 1:
        raise ArgumentError(
            f"devices: expected 1, because Apple GPUs cannot train together. Received: {world.devices}; pass devices=1 "
            "or accelerator='cpu'"
        )
    if accelerator == "cuda" and world.devices > (there := torch.cuda.device_count()):
        raise ArgumentError(
            "devices: expected at most {there}, the GPUs that torch sees. Received: {devices}",
            there=there,
            devices=world.devices,
        )
    if options.compile and accelerator == "cpu" and not _compilers():
        raise ArgumentError("compile: torch.compile needs a C++ compiler, and there is none; install g++ or clang++")


def several(options: TrainOptions) -> bool:
    """Return whether this process must start others: several devices are requested, and there is no launcher."""
    return devices(options) > 1 and not launched()


def devices(options: TrainOptions) -> int:
    """Return how many devices this machine uses without a launcher: at least the processes that divide a sequence."""
    return options.sequence_processes if options.devices == 1 else options.devices


def launched() -> bool:
    """Return whether a launcher (torchrun or srun) started this process together with others."""
    return _launcher() is not None


def first() -> bool:
    """Return whether this process is the first of those that a launcher started together: only it writes and prints."""
    environment = _launcher()
    return environment is None or environment.global_rank() == 0


def meet() -> None:
    """Wait until all processes that were started together are here: then the files of the first process exist."""
    if launched() and torch.distributed.is_initialized():
        torch.distributed.barrier()


class _Bfloat16(MixedPrecision):
    """Lightning's mixed precision in bfloat16, but with gradient clipping allowed before a fused optimiser step.

    Lightning forbids it, because a fused step may unscale gradients. Gradients in bfloat16 are never scaled.
    """

    clip_gradients = Precision.clip_gradients


class _World(NamedTuple):
    devices: int  # the number on each node
    nodes: int
    environment: ClusterEnvironment


def _world(options: TrainOptions) -> _World:
    """Return the numbers of processes, running or to be started: the launcher's numbers, else those in the options."""
    environment = _launcher()
    if environment is None:
        if options.nodes > 1:
            raise ArgumentError(
                f"nodes: {options.nodes} machines need torchrun or srun to start this command on each of them. "
                "Received: a command that neither has started; see docs/distributed.md"
            )
        return _World(devices(options), 1, LightningEnvironment())
    if isinstance(environment, TorchElasticEnvironment):
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes, name = environment.world_size() // here, "torchrun"
    else:
        nodes, name = int(os.environ["SLURM_NNODES"]), "srun"
        here = environment.world_size() // nodes
    for what, asked, there in (("devices", options.devices, here), ("nodes", options.nodes, nodes)):
        if asked not in (1, there):  # 1 is the default, which means the launcher's number
            raise ArgumentError(f"{what}: {name} started {there}, but {asked} were asked for; leave {what} out")
    return _World(here, nodes, environment)


def _launcher() -> ClusterEnvironment | None:
    """Return the launcher that started this process together with others; None if there is none."""
    if TorchElasticEnvironment.detect() and int(os.environ["WORLD_SIZE"]) > 1:
        return TorchElasticEnvironment()
    # Only srun sets this variable. In a batch script without srun there is one process, whatever the job may use.
    if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
        if "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise ArgumentError(f"srun: expected a job with --ntasks-per-node. Received: {tasks} tasks without it")
        return SLURMEnvironment(auto_requeue=False)  # a requeued job is resumed by `--resume`, from last.ckpt
    return None


def _accelerator(options: TrainOptions) -> Literal["cpu", "cuda", "mps"]:
    if options.accelerator == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    alone = devices(options) == 1 and _launcher() is None
    if torch.backends.mps.is_available() and (alone or options.accelerator == "gpu"):
        return "mps"
    if options.accelerator == "gpu":
        raise ArgumentError("accelerator: 'gpu' was asked for, but torch sees no GPU; pass 'cpu', or 'auto'")
    return "cpu"


def _compilers() -> list[str]:
    """Return the names of C++ compilers that torch.compile would find."""
    from torch._inductor import config

    names = cast("tuple[str | None, ...]", config.cpp.cxx if isinstance(config.cpp.cxx, tuple) else (config.cpp.cxx,))
    return [name for name in (os.environ.get("CXX"), *names, "g++", "clang++") if name and shutil.which(name)]

"""Training in several processes: with the whole model in each (`Replicate`), or a part of every weight (`FullyShard`).

After a step the weights are the same as if one process had taken the whole batch: gradients are averaged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pytorch_lightning import LightningModule
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from headwise.errors import TrainingError
from headwise.nn import DecoderLayer, EncoderLayer


class Share(NamedTuple):
    """The part of a batch that one process takes: number `rank` (from 0) of `world` parts."""

    rank: int
    world: int


def find_share(trainer: Any) -> Share:
    """Return which part of each batch this process takes. Processes that divide a sequence take the same examples."""
    rank, world = trainer.global_rank, trainer.world_size
    together = trainer.strategy.sequence_processes if isinstance(trainer.strategy, Replicate) else 1
    return Share(rank // together, world // together)


def sequence_mesh(module: LightningModule) -> DeviceMesh | None:
    """Return the processes that divide a sequence with this process, in a training; None if no sequence is divided."""
    trainer = module._trainer
    if trainer is None or not (trainer.training or trainer.validating):
        return None
    return trainer.strategy.sequence_mesh if isinstance(trainer.strategy, Replicate) else None


class Replicate(DDPStrategy):
    """Every process has the whole model; gradients are averaged while they are computed (Li et al. 2020).

    Args:
        sequence_processes: the number of neighbouring processes that divide each sequence among themselves.
    """

    def __init__(self, sequence_processes: int = 1) -> None:
        # A model may have weights that its task does not use: the pooler of a BERT that marks tokens.
        super().__init__(find_unused_parameters=True)
        self.sequence_processes = sequence_processes
        self.sequence_mesh: DeviceMesh | None = None  # this process and those that share its sequences

    def setup_environment(self) -> None:
        super().setup_environment()
        if self.sequence_processes > 1:
            shape = (self.world_size // self.sequence_processes, self.sequence_processes)
            names = ("batch", "sequence")
            self.sequence_mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=names)["sequence"]

    def configure_ddp(self) -> None:
        self._check_start()
        super().configure_ddp()

    def _check_start(self) -> None:
        """Check that this process has the same model as the first process.

        Raises:
            TrainingError: the models differ, in the vocabulary (because their files differ) or in the weights.
        """
        module = self.lightning_module
        assert module is not None
        ours = {
            name: (list(each.shape), each.detach().double().sum().item()) for name, each in module.named_parameters()
        }
        theirs = self.broadcast(ours)
        differ = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
        if not self.reduce_boolean_decision(not differ):
            said = f"differs from the first process's in {differ[0]}" if differ else "is not that of all others"
            raise TrainingError(
                f"process {self.global_rank}: the model {said} before the first step; expected every process to read "
                "the same files with the same options"
            )


class FullyShard(Replicate):
    """Every process keeps a part (share) of each weight, of its gradient and of its moments (FSDP; Zhao et al. 2023).

    The weights of a layer are gathered when it computes, and released afterwards. Weights outside of the layers are
    gathered for a step. Checkpoints are as in one process: whole tensors, written by the first process.
    """

    def model_to_device(self) -> None:
        """Do not move the whole model: `fully_shard` moves one layer at a time, and keeps only a part of it."""

    def configure_ddp(self) -> None:
        self._check_start()
        task = self.lightning_module
        assert task is not None
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        for module in list(task.modules()):
            if isinstance(module, EncoderLayer | DecoderLayer):
                fully_shard(module, mesh=mesh)
        fully_shard(task, mesh=mesh)
        for step in ("training_step", "validation_step"):
            register_fsdp_forward_method(task, step)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self._whole(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        return self._whole(super().optimizer_state(optimizer))

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            plain = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
            parameters = [each for group in plain.param_groups for each in group["params"]]
            shares = {place: _shares(kept, parameters[place]) for place, kept in state["state"].items()}
            plain.load_state_dict({**state, "state": shares})

    def teardown(self) -> None:
        """Move nothing back to the CPU: the parts of the weights are useless without each other."""
        assert self.cluster_environment is not None
        assert self.accelerator is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()

    def _whole(self, state: Any) -> Any:
        """Gather the parts of each tensor in a state into whole tensors, on the CPU of the first process.

        Other processes take part, but get None in place of these tensors.
        """

        def gather(value: Any) -> Any:
            if not isinstance(value, DTensor):
                return value
            whole = value.full_tensor()
            return whole.cpu() if self.is_global_zero else None

        return tree_map(gather, state)


def _shares(kept: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Cut the optimiser's state of one parameter (tensors of its size: moments) to the part that this process keeps."""
    assert isinstance(parameter, DTensor)
    mesh, placements = parameter.device_mesh, parameter.placements

    def share(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape or value.dim() == 0:
            return value
        return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)

    return {name: share(value) for name, value in kept.items()}

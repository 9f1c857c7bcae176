"""`Session`: a graph in an ONNX file, as a function of tensors or of named arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.export.manifest import GraphFile
from headwise.extras import need
from headwise.graphs.graph import Value

if TYPE_CHECKING:
    import onnxruntime

_DTYPES = {  # torch's dtype -> ONNX Runtime's name
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


@dataclass(frozen=True)
class Runtime:
    """The options with which ONNX Runtime runs a graph.

    Args:
        threads: the number of threads per call; None = `torch.get_num_threads()`.
        optimization: the level of graph optimisation at load time.
        arena: whether ONNX Runtime keeps memory for the next call. This is faster, but memory use does not shrink after
            a large call.
        spin: whether threads spin (use the CPU) while they wait for the next call: faster if one model has the machine
            to itself, slower if several models share it.
        providers: the execution providers of ONNX Runtime, in order of preference.

    Raises:
        ArgumentError: an invalid value.
    """

    threads: int | None = None
    optimization: Literal["all", "extended", "basic", "none"] = "all"
    arena: bool = True
    spin: bool = False
    providers: tuple[str, ...] = ("CPUExecutionProvider",)

    def __post_init__(self) -> None:
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ArgumentError(f"threads: expected a positive integer or None. Received: threads={self.threads!r}")
        if self.optimization not in ("all", "extended", "basic", "none"):
            raise ArgumentError(
                f"optimization: expected all, extended, basic or none. Received: optimization={self.optimization!r}"
            )


class Session:
    """A graph that ONNX Runtime runs. A session can be pickled; unpickling opens the file again.

    ONNX Runtime does not survive a fork: start processes with spawn, or load the export in each process.

    Args:
        folder: the folder of the export.
        graph: the entry in export.json that describes the graph.
        runtime: options of ONNX Runtime; None = the defaults.

    Raises:
        ArgumentError: ONNX Runtime is not installed, or lacks a provider.
        CheckpointError: the file is missing, damaged, or does not match export.json.
    """

    def __init__(self, folder: Path, graph: GraphFile, runtime: Runtime | None = None) -> None:
        self.path = folder / graph.file
        self.graph = graph
        self.name, self.inputs, self.outputs = graph.name, graph.inputs, graph.outputs
        self.runtime = runtime or Runtime()
        self._session: onnxruntime.InferenceSession | None = self._open()

    def giving(self, *names: str) -> Callable[..., tuple[Tensor, ...]]:
        """Return a function of tensors that runs the graph.

        The function takes the inputs by position, casts them, and returns the outputs `names`.

        Raises:
            CheckpointError: the graph lacks one of these outputs.
        """
        there = [value.name for value in self.outputs]
        if missing := [name for name in names if name not in there]:
            raise CheckpointError(
                f"{self.path} has no output {missing[0]!r}, only {', '.join(there)}. Export the model again"
            )

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = {
                value.name: tensor.detach().to(value.dtype).contiguous().numpy()
                for value, tensor in zip(self.inputs, tensors, strict=True)
            }
            return tuple(torch.from_numpy(array) for array in self._run(names, given))

        return call

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the graph on these inputs (name -> array). Returns the outputs (name -> array).

        Raises:
            ArgumentError: an input is missing or unknown, or the graph cannot compute with these values.
            DtypeError, ShapeError: an array has another dtype or shape.
        """
        self.check(arrays)
        names = [value.name for value in self.outputs]
        given = {value.name: np.asarray(arrays[value.name], order="C") for value in self.inputs}
        return dict(zip(names, self._run(names, given), strict=True))

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Check the names, dtypes and shapes of inputs. Raises ArgumentError, DtypeError and ShapeError as `run`."""
        names = [value.name for value in self.inputs]
        if list(arrays) != names and set(arrays) != set(names):
            wrong = [f"no {name!r}" for name in names if name not in arrays]
            wrong += [f"{name!r}, which is unknown" for name in arrays if name not in names]
            raise ArgumentError(f"expected the inputs {', '.join(names)}. Received: {wrong[0]}")
        sizes: dict[str, tuple[int, str]] = {}
        for value in self.inputs:
            _check_value(value, arrays[value.name], sizes)

    def _run(self, names: Sequence[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
        _check_process()
        if self._session is None:
            self._session = self._open()
        try:
            found: list[np.ndarray] = self._session.run(names, given)
        except Exception as cause:  # the errors of ONNX Runtime have no narrower common class
            said = " ".join(str(cause).split())
            raise ArgumentError(f"{self.path.name}: ONNX Runtime cannot compute this: {said}") from cause
        return found

    def _open(self) -> onnxruntime.InferenceSession:
        need("running an ONNX export", "export", "onnxruntime")
        import onnxruntime

        _check_process()
        if not self.path.is_file():
            raise CheckpointError(f"{self.path} is missing, although export.json lists it. Export the model again")
        runtime = self.runtime
        if lacking := [name for name in runtime.providers if name not in onnxruntime.get_available_providers()]:
            there = ", ".join(onnxruntime.get_available_providers())
            raise ArgumentError(f"providers: expected {there}. Received: {lacking[0]}, which this ONNX Runtime lacks")
        try:
            session = onnxruntime.InferenceSession(str(self.path), _options(runtime), providers=list(runtime.providers))
        except Exception as cause:  # ONNX Runtime's errors have no narrower common class
            said = " ".join(str(cause).split())
            raise CheckpointError(
                f"cannot load {self.path} into ONNX Runtime {onnxruntime.__version__}; it is damaged or of another "
                f"version: {said}"
            ) from cause
        self._check_file(session)
        return session

    def _check_file(self, session: onnxruntime.InferenceSession) -> None:
        """Check that the file has the inputs and outputs listed in export.json."""
        sides = ((self.inputs, session.get_inputs(), "inputs"), (self.outputs, session.get_outputs(), "outputs"))
        for values, there, what in sides:
            said = {value.name: f"tensor({_DTYPES.get(value.dtype)})" for value in values}
            has = {each.name: each.type for each in there}
            if said != has:
                odd = sorted(said.items() ^ has.items())[0][0]
                raise CheckpointError(
                    f"{self.path} does not match export.json: among its {what}, {odd!r} is {has.get(odd, 'missing')}, "
                    f"expected {said.get(odd, 'no such name')}. Export the model again"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}


_processes: list[int] = []  # the id of the process that opened the first session


def _check_process() -> None:
    """Raise ArgumentError in a fork of a process that used ONNX Runtime: a fork does not have the process's threads."""
    if not _processes:
        _processes.append(os.getpid())
    if _processes[0] != os.getpid():
        raise ArgumentError(
            "ONNX Runtime was used before this fork, so it cannot be used here. Start processes by spawn, "
            'multiprocessing.get_context("spawn")'
        )


def _options(runtime: Runtime) -> onnxruntime.SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = runtime.threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        "all": levels.ORT_ENABLE_ALL,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "basic": levels.ORT_ENABLE_BASIC,
        "none": levels.ORT_DISABLE_ALL,
    }[runtime.optimization]
    options.enable_cpu_mem_arena = runtime.arena
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(runtime.spin)))
    options.log_severity_level = 4  # errors are raised, so nothing needs to be logged
    return options


def _check_value(value: Value, array: np.ndarray, sizes: dict[str, tuple[int, str]]) -> None:
    """Check the dtype and shape of an input; `sizes` (axis → size and input that had it first) is updated."""
    axes = ", ".join(map(str, value.axes))
    dtype = np.dtype(str(value.dtype).removeprefix("torch."))
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        received = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise DtypeError(f"{value.name}: expected {dtype} [{axes}]. Received: {received}")
    fixed = [isinstance(axis, str) or axis == size for axis, size in zip(value.axes, array.shape, strict=False)]
    if array.ndim != len(value.axes) or not all(fixed):
        raise ShapeError(f"{value.name}: expected [{axes}]. Received: {list(array.shape)}")
    for axis, size in zip(value.axes, array.shape, strict=True):
        if isinstance(axis, str):
            first, where = sizes.setdefault(axis, (size, value.name))
            if size != first:
                raise ShapeError(
                    f"{value.name}: expected [{axes}] with {axis} = {first}, as in {where}. "
                    f"Received: {list(array.shape)}"
                )

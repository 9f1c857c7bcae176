"""Starts processes on this machine that work together, watches them, and ends them together.

Each process sees the environment that torchrun would give it, so that there is one way to train in several processes.
Lightning's own launchers either run the user's script again in each process, or require a special script; these
processes run only the given function, so that a script, a notebook and the command work in the same way.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headwise import language
from headwise.errors import ArgumentError, HeadwiseError, ParallelError, TrainingError
from headwise.tasks.training.callbacks.signals import Interrupt

_GRACE = 10.0  # seconds for other processes to end by themselves after one has failed


def together(count: int, function: Callable[..., object], *arguments: Any) -> None:
    """Run `function(*arguments)` in `count` new processes, and return when all have ended.

    Ctrl-C goes to all new processes; a second Ctrl-C ends them. They end if this process ends.

    Args:
        function, arguments: are pickled, so their classes and functions must be in a module that can be imported.

    Raises:
        HeadwiseError: the error that one of the processes raised.
        TrainingError: a process failed, or was killed.
        ArgumentError: a class or a function is defined in the script or notebook itself.
    """
    from torch.distributed import TCPStore

    with tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / "work").open("wb") as file:
            _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump((function, arguments))
        # This process has the store at which they meet, so that no free port has to be guessed.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _Passed(processes) as passed:
                processes += (_start(folder, rank, count, store.port) for rank in range(count))
                _wait(processes)
        finally:
            _end(processes)
        _raise_what_failed(folder, [process.returncode for process in processes], stopped=passed.asked)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise ArgumentError(
                f"{obj.__qualname__} is defined in the script or notebook itself, where the other processes cannot "
                "import it from; put it into a module of its own, or train on one device"
            )
        return NotImplemented


def _start(folder: Path, rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    seen = {
        **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        **{"TORCHELASTIC_RUN_ID": "headwise", "TORCHELASTIC_USE_AGENT_STORE": True},
        language.VARIABLE: language.language(),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # DDP warns that all weights are used
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // count)}
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "headwise.tasks.training.processes", str(folder)],
            env={**os.environ, **{name: str(value) for name, value in {**threads, **seen}.items()}},
            stdin=subprocess.PIPE,  # carries no data; it closes when this process is gone
            stdout=None if rank == 0 else log,  # only the first process prints
            stderr=None if rank == 0 else log,
            start_new_session=True,  # the terminal's Ctrl-C comes to this process, and is passed on once
        )


class _Passed(Interrupt):
    """A context in which signals to stop (Ctrl-C, or SIGTERM from a cluster) are passed on to the processes."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        super().__init__(waits=True)
        self._processes = processes

    def _tell(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended; after one has failed, wait only some time for the others."""
    failed_at = None
    while None in (codes := [process.poll() for process in processes]):
        if failed_at is None and any(codes):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > _GRACE:
            return
        time.sleep(0.05)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


def _raise_what_failed(folder: Path, codes: Sequence[int], *, stopped: bool) -> None:
    """Raise the error with which a process failed: a headwise error if there is one, else the first failure.

    Args:
        stopped: whether the processes were told to stop; then KeyboardInterrupt is raised instead of a failure.
    """
    if not any(codes):
        return
    files = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    errors = [(int(path.stem), pickle.loads(path.read_bytes())) for path in files]
    # (SIGTERM ends processes that still wait for a failed one.)
    killed = [rank for rank, code in enumerate(codes) if code < 0 and code != -signal.SIGTERM and not stopped]
    for _, (error, _) in errors:
        if error is not None and not (killed and isinstance(error, ParallelError)):  # others raise ParallelError, too
            raise error
    if stopped:
        raise KeyboardInterrupt
    if errors and not killed:
        rank, (_, trace) = errors[0]
        last = trace.strip().splitlines()[-1]
        raise TrainingError(f"process {rank} of {len(codes)} failed: {last}") from RuntimeError(trace)
    rank = killed[0] if killed else next(rank for rank, code in enumerate(codes) if code)
    log = (folder / f"{rank}.log").read_text(errors="replace").strip()
    how = f"was ended by signal {-codes[rank]}" if codes[rank] < 0 else f"ended with code {codes[rank]}"
    hint = ": the system may have run out of memory" if codes[rank] == -9 else ""
    raise TrainingError(f"process {rank} of {len(codes)} {how}{hint}") from RuntimeError(log or "its log is empty")


# --- In each of the processes -----------------------------------------------------------------------------------------


def _main(folder: Path) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with (folder / "work").open("rb") as file:
            function, arguments = pickle.load(file)
        function(*arguments)
        _leave_group()
    except BaseException as error:
        kept = error if isinstance(error, HeadwiseError) else None
        part = folder / f"{os.environ['RANK']}.part"
        part.write_bytes(pickle.dumps((kept, "".join(traceback.format_exception(error)))))
        part.rename(part.with_suffix(".error"))
        return 1
    return 0


def _leave_group() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the pipe closes
    os._exit(1)


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))

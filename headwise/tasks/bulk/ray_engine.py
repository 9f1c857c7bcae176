"""The parts of a file, done by workers of Ray Data: processes of this machine, or of a cluster.

Only numbers of parts go through Ray: a worker reads its chunk itself, and writes its part. So the file, the run and the
folder of `out` have to be in a place that all machines see, under the same path.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from headwise.errors import ArgumentError, HeadwiseError
from headwise.tasks.bulk.parts import Work
from headwise.tasks.rows.chunks import Reader

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_STORE = 100_000_000  # bytes; the least that Ray takes is 75 MiB, and only numbers go through it


def answer_parts(work: Work, missing: Sequence[int], workers: int, address: str | None, *, gpus: bool) -> Iterator[int]:
    """Do the parts, in any order; gives each that is done.

    Args:
        workers: how many processes load the run and do parts, one each at a time.
        address: of a cluster: "auto", "host:6379". None = that of RAY_ADDRESS or, without it, a Ray of its own on this
            machine, with as many CPUs as there are workers, which ends with the work.
        gpus: whether each worker is given a GPU, if the cluster has as many.

    Raises:
        ArgumentError: Ray is not installed, does not answer, a part cannot be done, or a worker ended.
    """
    ray = _ray()
    with _running(ray, workers, address):
        has_gpus = gpus and ray.cluster_resources().get("GPU", 0) >= workers
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        numbers = ray.data.from_items(
            [{"part": number} for number in missing], override_num_blocks=min(len(missing), 64 * workers)
        )
        done = numbers.map_batches(
            _Worker,
            fn_constructor_args=(work,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if has_gpus else 0,
        )
        try:
            for row in done.iter_rows():
                if row["error"]:
                    raise ArgumentError(row["error"])
                yield int(row["part"])
        except ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[-1]
            raise ArgumentError(f"a worker of Ray ended: {said:.300}; the same command goes on") from error


class _Worker:
    """Has the run loaded, and does parts. What is wrong with the data comes back as a sentence, to stop the work."""

    def __init__(self, work: Work) -> None:
        from headwise.tasks.training.run import load

        self._work = work
        self._task = load(work.run)
        self._reader = Reader(work.found)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (number,) = batch["part"].tolist()
        said = ""
        try:
            self._work.do(number, self._task, self._reader)
        except HeadwiseError as error:
            said = str(error)
        return {"part": [number], "error": [said]}


def _ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ArgumentError('--engine ray needs ray: pip install "headwise[ray]"') from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


@contextlib.contextmanager
def _running(ray: Any, workers: int, address: str | None) -> Iterator[None]:
    """A connection to a cluster, or a Ray of our own; one that somebody else has begun is used, and left as it is."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own = {"num_cpus": workers, "object_store_memory": _STORE, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else own)
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())
        where = f"the Ray cluster at {address} does not answer" if address else "Ray cannot be started here"
        raise ArgumentError(f"{where}: {said:.200}") from error
    try:
        yield
    finally:
        ray.shutdown()

"""Lets Ray Data workers run the model on the batches of a profile.

One task, on the calling machine, reads the corpus and cuts it into batches. Workers, on any machine, run the model on
them. The calling process sums their results. So only the model must exist on each machine.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterator
from typing import Any

from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError, HeadwiseError
from headwise.profiles.measuring import measured
from headwise.profiles.profile import Profile
from headwise.profiles.reading import Read, Reading
from headwise.profiles.resuming import digest_model
from headwise.profiles.sums import LayerSums
from headwise.tasks.bulk.ray_engine import Do, connected, on_workers

_STORE = 300_000_000  # bytes for a local Ray: the results of some batches, a few MB each, and a model that is sent


def measured_on_ray(
    reading: Reading, found: Profile, load: Callable[[], Pretrained], workers: int, address: str | None
) -> Generator[tuple[Read, list[LayerSums]]]:
    """Let Ray workers run the model; yield each batch, in corpus order, with the sums of every layer over it.

    Args:
        found: the profile, with its options and the digest of the model.
        load: the function that a worker calls for the model. It is pickled.
        workers, address: as for `headwise.profiles.profile`.

    Raises:
        ArgumentError: as for `profile`. Also errors of the corpus and of the model.
    """
    with connected(workers, address, _STORE) as ray:
        try:
            sent = ray.cloudpickle.dumps(reading)
        except Exception as error:  # any error that the parts of a corpus raise
            raise ArgumentError(
                "texts: expected a corpus that can be sent to another process, such as a list or "
                f"`headwise.profiles.corpus.of_file(...)`. Received: {type(reading.texts).__name__}, which cannot be "
                f"pickled: {error}"
            ) from error
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        batches = ray.data.from_items([{"corpus": sent, "folder": os.getcwd()}])
        batches.context.target_max_block_size = 1  # bytes: each batch is sent on as soon as it is ready
        batches = batches.map_batches(
            _read,
            batch_size=1,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        )

        def name(read: Read) -> str:
            texts = [each.text + 1 for each in read.windows] or [read.texts]
            return f"{found.corpus}: texts {min(texts):,} to {max(texts):,}, of which the first is 1"

        for _, done in on_workers(ray, batches, _Measure(load, found), workers, name, in_order=True):
            yield done


def _read(batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
    """Read the corpus in a Ray task; yield its batches in the form that `on_workers` takes."""
    (sent,), (folder,) = (batch[name].tolist() for name in ("corpus", "folder"))
    os.chdir(folder)  # the folder of the calling process: paths of the corpus may be relative
    item = -1
    try:
        for item, read in enumerate(pickle.loads(sent)):
            yield {"item": [item], "given": [pickle.dumps(read)], "error": [""]}
    except HeadwiseError as error:
        yield {"item": [item + 1], "given": [b""], "error": [str(error)]}


class _Measure:
    """Loads the model in a worker, and returns the function that measures one batch with it."""

    def __init__(self, load: Callable[[], Pretrained], found: Profile) -> None:
        self._load = load
        self._name, self._digest = found.model, found.model_digest
        self._options = [found.options[name] for name in ("only", "kept", "length")]

    def __call__(self) -> Do:
        model = self._load()
        if digest_model(model.model) != self._digest:
            raise ArgumentError(
                f"{self._name}: a Ray worker loads other weights than the process that started it. Give each machine "
                "the same model under the same name"
            )
        only, kept, length = self._options

        def do(read: Read) -> tuple[Read, list[LayerSums]]:
            return read, measured(model, read.windows, only, kept, length) if read.windows else []

        return do

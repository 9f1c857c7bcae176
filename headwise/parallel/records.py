"""Attention records of a sequence that processes share: all processes query and save them together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import DtypeError, FileError, ParallelError, RecordError
from headwise.parallel import exchange
from headwise.parallel.agreement import agree, agreeing
from headwise.parallel.context import check_mesh
from headwise.parallel.exchange import talking
from headwise.records.coverage import Coverage
from headwise.records.names import listed
from headwise.records.record import AttentionRecord
from headwise.records.saving import PartOf, in_file, save
from headwise.records.seen import Seen
from headwise.records.tensor_file import Pieced, in_file_order, write_tensors
from headwise.records.whole import Answer, Plan, WholeRecord, describe_record, read_share
from headwise.registry import Bundle

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def joined(seen: Seen, mesh: DeviceMesh) -> SharedSeen:
    """Join the records of all processes, of which each has some rows, to records of the whole sequence.

    >>> with headwise.context_parallel(mesh, layout), headwise.watch(model) as seen:
    ...     model(headwise.shard(x, layout, mesh), mask=mask)
    >>> whole = headwise.parallel.joined(seen, mesh)
    >>> whole[3].weights(rows=[5], cols=[0, 1, 2])                # [B, H, 1, 3], of the process that has row 5
    >>> whole[3].entropy()                                        # [B, H, N], in the order of the sequence
    >>> whole.save("run.hw")                                      # or whole.save("run.hw", parts=True)

    Every process must call this. The records stay in their processes: only requested rows are sent, and every process
    gets the answer. So every process must call the same methods, in the same order: `weights`, `statistics`, `summary`,
    `save`. A method that needs all queries and keys in one process (`record.call`, a page, an analysis) raises
    RecordError: save the records, and open the file.

    Args:
        seen: the records that this process made inside `context_parallel`; or `Seen([record])`.
        mesh: the mesh of `context_parallel`.

    Raises:
        ParallelError: processes with different records, a process with a record that is not of a shared sequence, or a
            process that is gone.
        RecordError: on a process whose record is not of a shared sequence.
    """
    check_mesh(mesh)
    if not isinstance(seen, Seen):
        raise DtypeError(f"joined: expected what a watch has seen. Received: seen={type(seen).__name__}")
    group = mesh.get_group()
    with agreeing("joined", {"number of records": len(seen.records)}, group):
        told = [describe_record(record) for record in seen.records]
    agree("joined", {"records": told}, group)
    together = _Together(group)
    shares = [read_share(record) for record in seen.records]
    # Most layers have the same rows as the layer before, in every process.
    again = [int(torch.equal(a.rows, b.rows)) for a, b in zip(shares[1:], shares, strict=False)]
    known = [False, *together.reduced(torch.tensor(again), dist.ReduceOp.MIN).tolist()]
    owners: list[Tensor] = []
    for share, same in zip(shares, known, strict=False):
        owners.append(owners[-1] if same else together.owner(share.rows, share.length))
    parts = [_Processes(record, owner, together) for record, owner in zip(seen.records, owners, strict=True)]
    return SharedSeen([WholeRecord(each) for each in parts], seen.coverage(), together)


class SharedSeen(Seen):
    """The records of a sequence that several processes share, as `joined` makes them."""

    def __init__(self, records: Sequence[WholeRecord], coverage: Coverage, together: _Together) -> None:
        super().__init__(records, coverage)
        self._together = together

    @property
    def whole_records(self) -> list[WholeRecord]:
        """All records, each of a whole sequence."""
        return [record for record in self.records if isinstance(record, WholeRecord)]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        return {"text/plain": repr(self)}, {}  # a page needs all queries and keys in one process

    def _copy(self, records: Sequence[AttentionRecord]) -> SharedSeen:
        seen = SharedSeen([each for each in self.whole_records if each in records], self.coverage(), self._together)
        seen._tokens, seen._source_tokens = self._tokens, self._source_tokens
        return seen

    def save(self, path: str | Path, *, parts: bool = False) -> None:
        """Write all records to one file, or to one per process; `headwise.load(path)` opens both.

        Every process calls it.

        Args:
            path: one file is written by the first process, on its machine. The other processes send their rows to it,
                in pieces of about 16 MB, each key once.
            parts: make `path` a folder in which each process writes the rows and keys that it has. On several machines,
                copy these files into one folder; a single file can be opened too. The tokens are in the file of the
                first process.

        Raises:
            FileError: the file cannot be written (on the process that writes it); or the folder holds other files of
                records.
            ParallelError: on the other processes, if one process cannot do its part.
            RecordError: a record that a file cannot hold.
        """
        told = {"parts": parts, "records": [repr(each) for each in self.records]}
        with agreeing("save", told, self._together.group):
            for record in self.whole_records:
                record.parts.own.check()
        if parts:
            self._save_part(Path(path))
        else:
            self._save_whole(Path(path))

    def _save_whole(self, path: Path) -> None:
        together = self._together
        with agreeing("save", {}, together.group):
            tensors, metadata = in_file(self)
        in_pieces = {name: x for name, x in in_file_order(tensors).items() if isinstance(x, Pieced)}
        told = [(name, x.shape, x.dtype) for name, x in in_pieces.items()]
        agree("save", {"tensors": told}, together.group)
        with together.ending_alike():
            if together.rank == 0:
                write_tensors(path, tensors, metadata)
            else:
                for x in in_pieces.values():
                    for _ in x.pieces():
                        pass

    def _save_part(self, folder: Path) -> None:
        together = self._together
        part = PartOf(together.from_first(secrets.token_hex(8)), together.rank, together.count)
        own = Seen([record.parts.own for record in self.whole_records], self.coverage())
        if together.rank == 0:
            own._tokens, own._source_tokens = self._tokens, self._source_tokens
        with together.ending_alike():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot make the folder {folder}: {(error.strerror or str(error)).lower()}") from error
            names = {PartOf(part.run, number, part.count).file_name for number in range(part.count)}
            if others := sorted(each.name for each in folder.glob("*.hw") if each.name not in names):
                raise FileError(
                    f"{folder}: expected a folder without other records. Received: {listed(others)}. Choose another "
                    "folder, or move them away"
                )
            save(own, folder / part.file_name, part)


class _Together:
    """The processes that share a sequence. Its methods are operations in which all processes take part."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self._device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        self._ended = False

    def rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Gather the rows of all processes: return [sum of counts, ...], in the order of the processes."""
        return torch.cat(exchange.all_gather(self._sent(x), list(counts), self.group)).to(x.device)

    def to_first(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Send rows to the first process: return the rows of all processes there, and no rows on the others."""
        nowhere = [0] * self.count
        sends, receives = [len(x), *nowhere[1:]], list(counts) if self.rank == 0 else nowhere
        return exchange.all_to_all(self._sent(x), sends, receives, self.group)

    def reduced(self, x: Tensor, how: Any) -> Tensor:
        """Return the sum or the maximum of x over the processes."""
        found = self._sent(x).clone()
        with talking(self.group):
            dist.all_reduce(found, how, group=self.group)
        return found.to(x.device)

    def from_first(self, text: str) -> str:
        """Return the text of the first process. It is ASCII, and has the same length everywhere."""
        found = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._device)
        with talking(self.group):
            dist.broadcast(found, group=self.group, group_src=0)
        return bytes(found.tolist()).decode()

    def owner(self, rows: Tensor, length: int) -> Tensor:
        """Return which process has each row, int64 [N]. ParallelError on all unless each row is in one process."""
        told = torch.zeros(2, length, dtype=torch.long)
        told[0, rows], told[1, rows] = 1, self.rank
        held, owner = self.reduced(told, dist.ReduceOp.SUM)
        if bool((held != 1).any()):
            row = int((held != 1).nonzero()[0, 0])
            raise ParallelError(
                f"joined: expected each row in one process. Received: row {row} of {length} in {int(held[row])}. Every "
                "process gives the records of the same run"
            )
        return owner

    def go_on(self, failed: BaseException | None) -> None:
        """Tell all processes whether this one has `failed`. If so raise its error; if another has, a ParallelError."""
        told = self.reduced(torch.tensor([0 if failed is None else self.rank + 1]), dist.ReduceOp.MAX)
        if not int(told):
            return
        self._ended = True
        raise failed or ParallelError(
            f"save: process {int(told) - 1} cannot do its part. Look at the error of that process, and save again"
        )

    @contextmanager
    def ending_alike(self) -> Iterator[None]:
        """Return a context that ends in the same way in all processes: with an error in all if one has failed.

        At its end the processes wait for one another. If one has failed, the others fail in their next `go_on`.
        """
        self._ended, failed = False, None
        try:
            yield
        except Exception as error:
            if self._ended:  # all processes know it
                raise
            failed = error
        self.go_on(failed)

    def _sent(self, x: Tensor) -> Tensor:
        return x.detach().to(self._device).contiguous()


class _Processes:
    """A record of which each process has one part. It is a `Parts`, the interface of records that have parts."""

    def __init__(self, own: AttentionRecord, owner: Tensor, together: _Together) -> None:
        self.own, self.owner, self.count = own, owner, together.count
        self._together = together
        self._name = own.site.name if own.site else "record"

    def ask(self, question: Mapping[str, object], plan: Plan) -> Answer:
        with agreeing(self._name, question, self._together.group):
            counts, work = plan()
            answer = work(self.own)
        return Answer(
            [self._together.rows(x, counts) for x in answer.rows],
            [self._together.reduced(x, dist.ReduceOp.SUM) for x in answer.sums],
            [self._together.reduced(x, dist.ReduceOp.MAX) for x in answer.maxima],
        )

    def collect(self, work: Callable[[AttentionRecord], Tensor], counts: Sequence[int], like: Tensor) -> Tensor:
        rows, failed = like[:0], None
        try:
            rows = work(self.own) if counts[self._together.rank] else rows
        except Exception as error:
            failed = error
        self._together.go_on(failed)
        return self._together.to_first(rows, counts)

    def whole(self, fields: Callable[[], SimpleNamespace]) -> NoReturn:
        raise RecordError(
            f"{self._name}: its queries and keys are with {self.count} processes, which answer for weights and "
            "statistics. For anything else save the records, and open the file with headwise.load in one process"
        )

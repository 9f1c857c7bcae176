"""`Exported`: a finished export, for the command's output and the model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwise.export.manifest import GraphFile, Manifest, read
from headwise.export.speed import Timing


@dataclass(frozen=True)
class Exported:
    """An export (the files of an exported model) that was written to a folder.

    Args:
        folder: the folder of the export.
        manifest: the content of its export.json: format, precision, graphs with their differences, notes.
        speed: the times of calls of the export and of PyTorch; () = not measured.
    """

    folder: Path
    manifest: Manifest
    speed: tuple[Timing, ...] = ()

    @classmethod
    def load(cls, folder: Path, speed: tuple[Timing, ...] = ()) -> Exported:
        """Read the export in a folder. Raises CheckpointError if the folder is not an export."""
        return cls(folder, read(folder), speed)

    def path_of(self, graph: GraphFile) -> str:
        """Return a graph's path relative to the export's folder; a graph that is itself a folder ends in "/"."""
        return f"{graph.file}/" if (self.folder / graph.file).is_dir() else graph.file

    @property
    def files(self) -> dict[str, int]:
        """The size in bytes of each file of the export, by the file's path in the export's folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in found}

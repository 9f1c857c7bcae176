"""`Exported`: what an export wrote: for the command to print, and for the model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwise.export.manifest import Manifest, read


@dataclass(frozen=True)
class Exported:
    """An export that was made, and compared with the model.

    Args:
        folder: where.
        manifest: what its export.json says: kind, precision, graphs with their differences, notes.
    """

    folder: Path
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path) -> Exported:
        """The export of a folder. Raises CheckpointError if it is none."""
        return cls(folder, read(folder))

    @property
    def files(self) -> dict[str, int]:
        """The size in bytes of each file, by its path in the folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in found}

"""The tokens of an image: a grid of patches in row-major order, after the prefix tokens of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.errors import ArgumentError
from headwise.text.tokens import Tokens


@dataclass(frozen=True)
class Patches:
    """`rows` × `cols` patches, from the top left, after the tokens named in `prefix`.

    >>> vit = Patches.of_image((224, 224), patch=16)  # one [CLS], 14 rows, 14 columns
    >>> len(vit), vit.labels[:3], vit.position(15), vit.index(1, 0)
    (197, ('[CLS]', '(0, 0)', '(0, 1)'), (1, 0), 15)

    A model without [CLS] has `prefix=()`; one with four registers after it ("[CLS]", "[REG1]", …, "[REG4]").

    Raises:
        ArgumentError: fewer than one row or column.
    """

    rows: int
    cols: int
    prefix: tuple[str, ...] = ("[CLS]",)

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise ArgumentError(f"patches: expected at least 1 row and 1 column. Received: {self.rows} × {self.cols}")
        if isinstance(self.prefix, str):
            raise ArgumentError(
                f"patches: expected a tuple of names, ({self.prefix!r},). Received: prefix={self.prefix!r}"
            )
        object.__setattr__(self, "prefix", tuple(self.prefix))

    @classmethod
    def of_image(
        cls, image: tuple[int, int], patch: int | tuple[int, int], prefix: tuple[str, ...] = ("[CLS]",)
    ) -> Patches:
        """The patches of an image of (height, width) pixels; `patch` is (height, width) too, or one number for both.

        Raises:
            ArgumentError: the patches do not cover the image exactly.
        """
        height, width = (patch, patch) if isinstance(patch, int) else patch
        if min(height, width, *image) < 1 or image[0] % height or image[1] % width:
            raise ArgumentError(
                f"patches: {image[0]} × {image[1]} pixels cannot be divided into patches of {height} × {width}. "
                "Pass the size of the image as the model reads it"
            )
        return cls(image[0] // height, image[1] // width, prefix)

    def __len__(self) -> int:
        return len(self.prefix) + self.rows * self.cols

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the prefix, then "(row, column)" of each patch, both from 0."""
        return (*self.prefix, *(f"({row}, {col})" for row in range(self.rows) for col in range(self.cols)))

    def position(self, token: int) -> tuple[int, int] | None:
        """The (row, column) of a token, None for a prefix token. ArgumentError for a number out of range."""
        if not 0 <= token < len(self):
            raise ArgumentError(f"patches: expected one of the tokens 0 … {len(self) - 1}. Received: token={token}")
        patch = token - len(self.prefix)
        return None if patch < 0 else divmod(patch, self.cols)

    def index(self, row: int, col: int) -> int:
        """The token of the patch in this row and column. ArgumentError outside the grid."""
        if not (0 <= row < self.rows and 0 <= col < self.cols):
            raise ArgumentError(
                f"patches: expected rows 0 … {self.rows - 1}, columns 0 … {self.cols - 1}. Received: ({row}, {col})"
            )
        return len(self.prefix) + row * self.cols + col

    def tokens(self) -> Tokens:
        """The patches as `Tokens` without text; prefix tokens are special."""
        special = tuple(i < len(self.prefix) for i in range(len(self)))
        return replace(Tokens.of_names(self.labels), special=special, word_ids=(None,) * len(self), patches=self)

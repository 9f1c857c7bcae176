"""`Match`: learns and predicts whether an image and a text belong together."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence

from headwise.capture import watch
from headwise.errors import ArgumentError, HeadwiseError, brief
from headwise.graphs import image_text
from headwise.graphs.graph import Graph
from headwise.graphs.rows import collect_inputs
from headwise.graphs.session import Sessions
from headwise.models import Bert, BertConfig
from headwise.models.image_text import ImageText, ImageTextConfig
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, take_text
from headwise.tasks.matching.candidates import (
    Candidates,
    encode_images,
    encode_texts,
    make_ids,
    pad_texts,
    room_for,
    stack_images,
)
from headwise.tasks.matching.contrast import contrastive, others, paired
from headwise.tasks.matching.finding import BEST, Finder
from headwise.tasks.options.match import MatchOptions
from headwise.tasks.rows.gallery import Gallery, Question, asked_in, questions
from headwise.tasks.rows.pictures import FORMATS, Pixels, decoded, digest, name_image, read_picture, why_not
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scores import Scores
from headwise.tasks.scoring.retrieval import DEPTHS, recall, recall_by_chance
from headwise.tasks.task import Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, limit
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.training.shares import of_all_processes
from headwise.text import Patches

PICTURES = 4  # images on which an export is compared


class Example(NamedTuple):
    """A pair of an image and a text, and all texts of this image. Digests of the content identify images and texts."""

    pixels: Pixels
    ids: list[int]
    image: int
    text: int
    texts: tuple[int, ...]
    longest: int  # tokens of the longest text of all examples


class Match(Task[MatchOptions]):
    """Two encoders that map images and texts to one vector space, and layers in which the text attends to the patches.

    The loss is the loss of CLIP (Radford et al. 2021) and, for the layers on top, the loss of ALBEF (Li et al. 2021):
    these layers predict whether the text belongs to the image, also for the most similar wrong text and image of the
    batch. All pairs of an image and a text that occur in some row belong together.

    >>> task = Match.fit("pairs.csv", image="path", text="caption", out="run")
    >>> task.predict(["a seven", "digits/3.png", {"image": "digits/3.png", "text": "a seven"}])
    """

    name = "match"
    options_type = MatchOptions
    compared_by = (
        ("text_to_image_recall@1", "max"),
        ("image_to_text_recall@1", "max"),
        ("matching_accuracy", "max"),
    )

    model: ImageText

    def __init__(self, options: MatchOptions, model: ImageText, subwords: Subwords, gallery: Gallery) -> None:
        super().__init__(options, model)
        self.subwords = subwords
        self.gallery = gallery
        self._finder = Finder(model, subwords, options)

    @classmethod
    def read(cls, source: Any, options: MatchOptions, *, targets: bool = True) -> Data:
        """Read the rows and their images. The columns are "name" (of the image), "pixels" and "text"."""
        if isinstance(source, Data):
            return source
        data = read_table(source, {"image": options.image, "text": options.text}, texts=("text",))
        folder = Path(source).expanduser().parent if isinstance(source, str | Path) else None
        found: dict[str, Pixels] = {}
        names: dict[int, str] = {}  # equal arrays get the name of the first
        columns: dict[str, list[Any]] = {"name": [], "pixels": [], "text": data.columns["text"]}
        unusable: dict[int, str] = {}
        for row, (image, number) in enumerate(zip(data.columns["image"], data.numbers, strict=True)):
            name, pixels = name_image(image, number), None
            try:
                pixels = found.get(name)
                if pixels is None:
                    pixels = read_picture(image, options.image_size, options.channels, folder)
                    name = names.setdefault(digest(pixels.tobytes()), name) if name == f"image {number}" else name
                    pixels = found.setdefault(name, pixels)
            except HeadwiseError as error:
                unusable[row] = why_not(image, error)
            columns["name"].append(name)
            columns["pixels"].append(pixels)
        return replace(data, columns=columns).without(unusable)

    @classmethod
    def split(cls, data: Data, options: MatchOptions) -> tuple[Data, Data]:
        """Split the data by images, so that no image is in both parts."""
        return data.split_groups("name", options.validation_share, options.seed)

    @classmethod
    def learn(cls, data: Data, options: MatchOptions) -> Match:
        texts = list(dict.fromkeys(data.columns["text"]))
        if len(texts) < 2:
            raise ArgumentError(
                "{name}: expected at least two different texts. Received: only {text}",
                name=data.name,
                text=brief(texts[0], 60),
            )
        images = dict(zip(data.columns["name"], data.columns["pixels"], strict=True))
        gallery = Gallery.of(images, texts, options.gallery)
        bert, subwords = _text_encoder(texts, options)
        channels = np.stack(list(images.values())).reshape(-1, options.channels) / 255
        config = ImageTextConfig(
            text=bert.config,
            image_size=options.image_size,
            patch_size=options.patch_size,
            channels=options.channels,
            mean=tuple(channels.mean(0).tolist()),
            std=tuple(channels.std(0).clip(0.01).tolist()),
            dim=options.dim,
            image_layers=options.image_layers,
            fusion_layers=options.fusion_layers,
            num_heads=options.heads,
            shared_dim=options.shared_dim,
            dropout=options.dropout,
        )
        return cls(options, ImageText(config, bert), subwords, gallery)

    def encode(self, data: Data, *, targets: bool = True) -> list[Example]:
        numbers = [digest(name) for name in data.columns["name"]], [digest(text) for text in data.columns["text"]]
        of_image: dict[int, dict[int, None]] = {}
        for image, text in zip(*numbers, strict=True):
            of_image.setdefault(image, {})[text] = None
        texts = {image: tuple(found) for image, found in of_image.items()}
        ids = self._ids(data.columns["text"])
        longest = max(map(len, ids), default=0)
        return [
            Example(pixels, row, image, text, texts[image], longest)
            for pixels, row, image, text in zip(data.columns["pixels"], ids, *numbers, strict=True)
        ]

    def length(self, example: Example) -> int:
        """Return the same length for all examples, so that each batch has texts of different lengths.

        In a batch of texts of equal lengths the contrast between texts would be easier.
        """
        return self.model.config.grid**2 + example.longest

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Make a batch: each distinct image and each distinct text once, and the pairs as indices of these."""
        images = {example.image: example for example in examples}
        texts = {example.text: example for example in examples}
        of_image = {image: place for place, image in enumerate(images)}
        of_text = {text: place for place, text in enumerate(texts)}
        others = [torch.tensor(example.texts) for example in images.values()]
        return {
            "pixels": stack_images([example.pixels for example in images.values()]),
            **pad_texts([example.ids for example in texts.values()], self.subwords.pad),
            "image_of": torch.tensor([of_image[example.image] for example in examples]),
            "text_of": torch.tensor([of_text[example.text] for example in examples]),
            "texts": torch.tensor(list(texts))[:, None],
            "texts_of_image": pad_sequence(others, batch_first=True, padding_value=0),
        }

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        model, image_of, text_of = self.model, batch["image_of"], batch["text_of"]
        image = model.encode_image(batch["pixels"])
        text = model.encode_text(batch["input_ids"], batch["real"])

        images, image_texts = of_all_processes(self, image.vector), of_all_processes(self, batch["texts_of_image"])
        texts, text_numbers = of_all_processes(self, text.vector), of_all_processes(self, batch["texts"])
        to_texts_UT = model.scale * image.vector @ texts.mT
        to_images_TU = model.scale * text.vector @ images.mT
        contrastive_U = contrastive(to_texts_UT, paired(batch["texts_of_image"], text_numbers))
        contrastive_T = contrastive(to_images_TU, paired(image_texts, batch["texts"]).mT)

        pairs = (contrastive_U[image_of] + contrastive_T[text_of]) / 2
        similarity_UT = (image.vector @ text.vector.mT).detach() * model.scale.detach()
        matching = self._matching(batch, image.states, text.states, similarity_UT)
        return (pairs + matching).sum(), torch.tensor(len(pairs), device=pairs.device)

    def _matching(self, batch: Batch, images: Tensor, texts: Tensor, similarity_UT: Tensor) -> Tensor:
        """Return the fusion layers' binary loss: for each pair, its text with another image, its image with another
        text.

        Li et al. 2021, section 3.2. The function `others` selects the other image and the other text.
        """
        image_of, text_of = batch["image_of"], batch["text_of"]
        paired_UT = paired(batch["texts_of_image"], batch["texts"])
        other_texts, has_text = others(similarity_UT, paired_UT, image_of, draw=self.training)
        other_images, has_image = others(similarity_UT.mT, paired_UT.mT, text_of, draw=self.training)
        from_images = torch.cat((image_of, image_of, other_images))
        from_texts = torch.cat((text_of, other_texts, text_of))
        logits = self.model.match(images[from_images], texts[from_texts], batch["real"][from_texts]).float()
        belongs, *not_these = logits.view(3, -1)
        there = torch.stack((has_text, has_image)).float()
        wrong = -(logsigmoid(-torch.stack(not_these)) * there).sum(0) / there.sum(0).clamp(min=1)
        return (wrong - logsigmoid(belongs)) / 2

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Find the best images of the gallery (see `Gallery`) for a text, the best texts for an image; score a pair.

        Args:
            inputs: a text, an image's path (by its suffix), an array or a PIL image, a dict with "image", "text" or
                both; several of these; or a table that has one or both of the columns.

        Returns:
            For a pair "match", the probability that text and image belong together, and "similarity", the cosine of
            their vectors. For a text the best three images: "image", "match", "image 2", "match 2" …; for an image the
            best three texts: "text", "match", "text 2" ….
        """
        self.eval()
        asked = questions(inputs, self.options)
        answers = self._finder.answers(asked, self.gallery)
        return [_numbered(each.wants, answer) for each, answer in zip(asked, answers, strict=True)]

    def look(self, inputs: Any) -> list[Seen]:
        """Return the attention for each pair. A single text is paired with the gallery's best image, and vice versa.

        The text attends to the image: "fusion.layers.0.cross_attention" has a row for each word and a column for each
        patch.
        """
        return [self.look_at(each)[0] for each in questions(inputs, self.options)]

    def cut(self, inputs: Any) -> dict[int, str]:
        if isinstance(inputs, Data) and "text" in inputs.columns:
            texts = inputs.columns["text"]
        else:
            texts = [each.text or "" for each in questions(inputs, self.options)]
        return cut(map(self.subwords.size, ([each] for each in self.subwords.pieces(texts))), self.options.max_length)

    def pictures(self, inputs: Any) -> list[Pixels]:
        """Return the images that `look` reads, uint8 [H, W] or [H, W, 3], as the background of the attention maps."""
        self.eval()
        return [_picture(self._finder.paired(each, self.gallery)) for each in questions(inputs, self.options)]

    def columns(self) -> Columns:
        from PIL import Image

        image = f"an image file: {', '.join(FORMATS)}"
        size, written = self.options.image_size, io.BytesIO()
        Image.new("L", (size, size), 128).save(written, "PNG")
        return Columns(
            inputs=(
                Column("image", "BYTES", (), image, optional=True, binary=True),
                Column(
                    "text", "BYTES", (), f"a description of an image{limit(self.options.max_length)}", optional=True
                ),
            ),
            outputs=(
                Column("match", "FP32", (), "the probability that the pair, or the best match, belongs together"),
                Column("similarity", "FP32", (), "for a pair: cosine similarity of the two vectors", optional=True),
                Column("best", "BYTES", (-1,), f"for a single input: names of the {BEST} best matches", optional=True),
                Column("matches", "FP32", (-1,), "for a single input: the score of each match", optional=True),
            ),
            example={"image": written.getvalue(), "text": next(iter(self.gallery.texts), "a picture")},
        )

    def read_row(self, row: Row) -> Question:
        if row.get("image") is None and row.get("text") is None:
            raise ArgumentError("expected an image, a text, or both. Received: neither of them")
        found, options = Question(), self.options
        if row.get("image") is not None:
            found = Question(pixels=read_picture(decoded(row["image"]), options.image_size, options.channels))
        if row.get("text") is not None:
            text = take_text(row, "text")
            found = replace(found, text=text, read=self.subwords.read([text]))
        return found

    def count_tokens(self, asked: Question) -> int:
        patches = 0 if asked.pixels is None else self.model.config.grid**2
        return patches + (0 if asked.read is None else asked.read.size)

    def answer_rows(self, asked: Sequence[Question]) -> list[Row]:
        self.eval()
        return [
            {**found, "best": np.array(found["best"], object), "matches": np.array(found["matches"], np.float32)}
            if "best" in found
            else found
            for found in self._finder.answers(asked, self.gallery)
        ]

    def look_at(self, asked: Question) -> tuple[Seen, Pixels]:
        self.eval()
        pair = self._finder.paired(asked, self.gallery)
        assert pair.text is not None
        assert pair.pixels is not None
        room = room_for(self.subwords, self.options.max_length)
        tokens = self.subwords.named(pair.read or self.subwords.read([pair.text]), [slice(room)])
        grid = self.model.config.grid
        named = {"target": [tokens], "source": [Patches(grid, grid, prefix=()).tokens()]}
        pixels = stack_images([pair.pixels]).to(self.device)
        with torch.no_grad(), watch(self.model, tokens=named) as seen:
            self.model(pixels, torch.tensor([tokens.ids], device=self.device))
        return seen, _picture(pair)

    def evaluate(self, source: Any) -> Scores:
        """Compute recall@k of finding images for a text and texts for an image, and the accuracy of the fusion layers.

        The accuracy is over true pairs and, for each, the same image with another text. The baseline is chance.
        """
        self.eval()
        data = self.read(source, self.options)
        images = dict(zip(data.columns["name"], data.columns["pixels"], strict=True))
        texts = list(dict.fromkeys(data.columns["text"]))
        rows, columns = ({name: place for place, name in enumerate(each)} for each in (images, texts))
        right_UT = torch.zeros(len(images), len(texts), dtype=torch.bool)
        for name, text in zip(data.columns["name"], data.columns["text"], strict=True):
            right_UT[rows[name], columns[text]] = True

        encoded = encode_images(self.model, list(images.values()))
        found = Candidates(self.model, encoded, *encode_texts(self.model, self._ids(texts), self.subwords.pad))
        rerank, deepest = self.options.rerank, max(DEPTHS)
        orders = {
            "text_to_image": (found.best_images(rerank, deepest).cpu(), right_UT.mT),
            "image_to_text": (found.best_texts(rerank, deepest).cpu(), right_UT),
        }
        values, chance = {}, {}
        for direction, (order, right) in orders.items():
            for depth in DEPTHS:
                values[f"{direction}_recall@{depth}"] = recall(order, right, depth)
                chance[f"{direction}_recall@{depth}"] = recall_by_chance(right, depth)
        values["matching_accuracy"], chance["matching_accuracy"] = _accuracy(found, right_UT), 0.5
        return Scores(values, len(data), {"a random order": chance}, left_out=(*data.left_out, *self.remarks(data)))

    def asked(self, source: Any) -> Data:
        return asked_in(source, self.options)

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graphs "image", "text" and "match": see `headwise.graphs.image_text`.

        The example inputs are made of `rows`, or of the gallery.
        """
        if rows is None and self.gallery.images:
            rows = list(self.gallery.texts[:PICTURES])
        pixels = [(each[:PICTURES],) for (each,) in collect_inputs(self.model.image, self.predict, rows, most=1)]
        return image_text.graphs(self.model, pixels, collect_inputs(self.model.text, self.predict, rows, most=1))

    def run_on(self, sessions: Sessions) -> None:
        image_text.run_on(self.model, sessions)

    def state(self) -> dict[str, Any]:
        config = asdict(self.model.config)
        return {
            "model": config | {name: list(config[name]) for name in ("mean", "std")},
            "gallery": self.gallery.state(),
        }

    @classmethod
    def restore(cls, options: MatchOptions, state: dict[str, Any], folder: Path) -> Match:
        shape: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in state["model"].items()
        }
        config = ImageTextConfig(**{**shape, "text": BertConfig(**state["model"]["text"])})
        gallery = Gallery.load(folder, state["gallery"])
        return cls(options, ImageText(config), Subwords.from_pretrained(folder), gallery)

    def save_files(self, folder: Path) -> None:
        self.subwords.save(folder)
        self.gallery.save(folder)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return make_ids(self.subwords, texts, self.options.max_length)


def _numbered(wants: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of `predict` with one numbered column per best match ("image", "image 2" …)."""
    if wants == "pair":
        return answer
    found: dict[str, Any] = {}
    for rank, (name, share) in enumerate(zip(answer["best"], answer["matches"], strict=True), start=1):
        number = "" if rank == 1 else f" {rank}"
        found |= {f"{wants}{number}": name, f"match{number}": share}
    return found


def _picture(pair: Question) -> Pixels:
    """Return the image of a pair, uint8 [H, W] or [H, W, 3]."""
    assert pair.pixels is not None
    return pair.pixels[:, :, 0] if pair.pixels.shape[2] == 1 else pair.pixels


def _text_encoder(texts: Sequence[str], options: MatchOptions) -> tuple[Bert, Subwords]:
    """Return (text encoder, its subwords): from the checkpoint in the options; or new, from the texts."""
    longest = options.max_length
    if options.model is not None:
        return encoders.pretrained(options.model, texts, dropout=options.dropout, max_length=longest)
    subwords = Subwords.train(texts, options.vocab_size, lowercase=options.lowercase)
    shape = {"dim": options.dim, "layers": options.text_layers, "heads": options.heads}
    return encoders.new_bert(subwords, **shape, max_length=longest, dropout=options.dropout), subwords


def _accuracy(found: Candidates, right_UT: Tensor) -> float:
    """Compute the accuracy over the true pairs and, for the image of each, the next text that does not belong to it."""
    images, texts = right_UT.nonzero(as_tuple=True)
    after = (texts[:, None] + torch.arange(1, right_UT.shape[1] + 1)) % right_UT.shape[1]
    others = after.gather(1, (~right_UT[images]).gather(1, after).int().argmax(1, keepdim=True))[:, 0]
    has_other = ~right_UT[images, others]
    device = found.images.states.device
    belong = found.match(images.to(device), texts.to(device)).cpu() > 0
    not_others = found.match(images.to(device), others.to(device)).cpu()[has_other] <= 0
    return float(torch.cat((belong, not_others)).float().mean())

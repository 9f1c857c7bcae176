"""The passes of a decoder for texts of different lengths: each pass reads one more token of each text.

The hypotheses (beams) of one text share the keys of its source, which are kept once, and the keys of its past tokens.
Each hypothesis knows which hypothesis wrote each slot of the cache, so a beam search need not move keys. Native kernels
(`models.packed_decoder`) compute what they support, the modules all else; the numbers are the same as from the modules'
`forward`. Dimension letters: N texts, w hypotheses of each, M model, H heads, D head dimension, S slots (one per
token), K source tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from headwise import masks
from headwise.call import make_call
from headwise.functional import attention
from headwise.kernels import native as native_kernel
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.models.language_model import CausalLanguageModel
from headwise.models.packed_decoder import Writer, pack_writer
from headwise.native.decoder import Decoder, Read, Source
from headwise.native.linear import Weights
from headwise.native.linear import linear as native_linear
from headwise.nn import MultiHeadAttention
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.running.key_values import KeyValues

NATIVE_KEYS = 64  # with fewer keys the fixed cost of a native call outweighs its gain


class _Sources:
    """The cached keys and values of the source of each text, for cross-attention, in each layer."""

    def __init__(self, layers: Sequence[DecoderLayer], like: Tensor) -> None:
        self._cross = [layer.cross_attention for layer in layers]
        first = self._cross[0]
        assert isinstance(first, MultiHeadAttention)
        self.held = KeyValues(len(layers), 1, first.num_kv_heads, first.head_dim, like)
        self.lengths_N = torch.zeros(0, dtype=torch.int64, device=like.device)
        self.longest = 0
        self.bias = like.new_zeros(0, 1, 1, 0)  # [N, 1, 1, K]: masks the end of a source

    def join(self, memory_TM: Tensor, real_NK: Tensor, packed: Weights | None) -> None:
        """Append the sources of more texts.

        Args:
            memory_TM: the encoder's output for all tokens of these sources, text by text, without padding.
            real_NK: bool, True = a token, not padding.
            packed: the projection to keys and values of all layers; None = the modules project.
        """
        begun, (texts, longest) = len(self.lengths_N), real_NK.shape
        self.held.make_room(begun + texts, longest)
        self.held.clear(begun, begun + texts)
        of_text_T, place_T = real_NK.nonzero(as_tuple=True)
        heads = self.held.keys.shape[-2:]
        if packed is not None:
            found = native_linear(memory_TM, packed).unflatten(1, (len(self._cross), 2, *heads)).unbind(2)
            k_LTGD, v_LTGD = (x.transpose(0, 1) for x in found)
        else:
            pairs = [cross.project(memory_TM[None], "kv") for cross in self._cross]
            k_LTGD, v_LTGD = (torch.cat(x).transpose(1, 2) for x in zip(*pairs, strict=True))
        self.held.keys[:, begun + of_text_T, place_T, 0] = k_LTGD
        self.held.values[:, begun + of_text_T, place_T, 0] = v_LTGD
        self._see(torch.cat([self.lengths_N, real_NK.sum(1)]))

    def keep(self, order: Sequence[int]) -> None:
        self.held.move(order, self.longest)
        self._see(self.lengths_N[list(order)])

    def packed(self) -> Source:
        """Return the sources in the form that the native kernels take."""
        return Source(self.held.keys.flatten(3), self.held.values.flatten(3), self.lengths_N)

    def _see(self, lengths_N: Tensor) -> None:
        self.lengths_N, self.longest = lengths_N, int(lengths_N.max()) if len(lengths_N) else 0
        behind_NK = torch.arange(self.longest, device=lengths_N.device) >= lengths_N[:, None]
        self.bias = _bias(behind_NK[:, None], self.held.keys.dtype)


class _Decoder:
    """The layers of a decoder, and a cache of the keys and values of the tokens that each text has read.

    Args:
        stack: the layers, with norms before attention and MLP (pre-norm), and the norm after the last layer.
        table: the output embeddings, [V, M], which turn hidden states into logits.
        width: w, the number of hypotheses of each text.
        sources: the sources of the texts, for layers with cross-attention.
    """

    def __init__(self, stack: nn.Module, table: Tensor, width: int, sources: _Sources | None = None) -> None:
        self.layers: list[DecoderLayer | EncoderLayer] = list(stack.layers)  # type: ignore[arg-type]
        self.norm: nn.Module | None = stack.norm  # type: ignore[assignment]
        self.table, self.width, self._sources = table, width, sources
        self._packed: Decoder | None = None
        first = _own_attention(self.layers[0])
        self.held = KeyValues(len(self.layers), width, first.num_kv_heads, first.head_dim, table)
        self.places_N = torch.zeros(0, dtype=torch.int64, device=table.device)  # tokens read by each text
        self.longest = 0  # the largest number in `places_N`
        self._past_NwS = torch.zeros(0, width, 0, dtype=torch.int64, device=table.device)  # writer of each slot
        self._own_w = torch.arange(width, device=table.device)

    @property
    def texts(self) -> int:
        """N, the number of texts that the decoder computes."""
        return len(self.places_N)

    def begin(self, read: Sequence[int], writer: Writer | None) -> None:
        """Add texts that have read `read` tokens each. From now on the native `writer`, if any, computes all texts."""
        begun = self.texts
        self._make_room(begun + len(read), max(self.longest, *read) + 1)
        self.held.clear(begun, begun + len(read))
        self.places_N = torch.cat([self.places_N, self.places_N.new_tensor(read)])
        self._past_NwS = torch.cat([self._past_NwS, self._past_NwS.new_zeros(len(read), *self._past_NwS.shape[1:])])
        self.longest = max(self.longest, *read)
        self._packed = None if writer is None else writer.decoder

    def _make_room(self, texts: int, slots: int) -> None:
        self.held.make_room(texts, slots)
        if (more := self.held.slots - self._past_NwS.shape[2]) > 0:
            self._past_NwS = nn.functional.pad(self._past_NwS, (0, more))

    def keep(self, order: Sequence[int]) -> None:
        self.held.move(order, self.longest)
        self.places_N, self._past_NwS = self.places_N[list(order)], self._past_NwS[list(order)]
        self.longest = int(self.places_N.max()) if len(order) else 0

    def follow(self, parents_Nw: Tensor) -> None:
        past_NwS = self._past_NwS[..., : self.longest]
        past_NwS.copy_(past_NwS.gather(1, parents_Nw[..., None].expand_as(past_NwS)))

    def logits(self, x_NwM: Tensor) -> Tensor:
        """Read one more token of each hypothesis, with embeddings `x_NwM`. Returns the logits [N, w, V] after it."""
        return self._step(x_NwM, None if self._packed is None else self._packed.logits, self.table)

    def hidden(self, x_NwM: Tensor) -> Tensor:
        """Read one more token of each hypothesis, with embeddings `x_NwM`. Returns its hidden states [N, w, M]."""
        return self._step(x_NwM, None if self._packed is None else self._packed.hidden, None)

    def _step(self, x_NwM: Tensor, native: Callable[..., Tensor] | None, table: Tensor | None) -> Tensor:
        texts, slots = self.texts, self.longest + 1
        self._make_room(texts, slots)
        places_Nw1 = self.places_N[:, None, None].expand(-1, self.width, 1)
        self._past_NwS.scatter_(2, places_Nw1, self._own_w[:, None].expand(texts, -1, 1))
        if native is not None:
            found = native(x_NwM.flatten(0, 1), *self._read()).unflatten(0, (texts, self.width))
        else:
            found = self._through(x_NwM)
            found = found if table is None else linear(found, table)
        self.places_N, self.longest = self.places_N + 1, slots
        return found

    def _read(self) -> tuple[Read, Source | None]:
        read = Read(self.held.keys.flatten(4), self.held.values.flatten(4), self._past_NwS, self.places_N)
        return read, None if self._sources is None else self._sources.packed()

    def _through(self, x_NwM: Tensor) -> Tensor:
        """Compute the hidden states by the modules of the layers."""
        slots, bias = self.longest + 1, None
        behind_NS = torch.arange(slots, device=x_NwM.device) > self.places_N[:, None]
        if self.width > 1:
            is_other_NwSw = self._past_NwS[..., :slots, None] != self._own_w
            bias = _bias((is_other_NwSw | behind_NS[:, None, :, None]).flatten(2), x_NwM.dtype)
        elif bool(behind_NS.any()):
            bias = _bias(behind_NS[:, None], x_NwM.dtype)
        for i, layer in enumerate(self.layers):
            own = _own_attention(layer)
            q, k, v = own.project(_own_norm(layer)(x_NwM), "qkv")  # [N, H, w, D]
            if own.positions is not None:
                ids_Nw = self.places_N[:, None].expand(-1, self.width)
                q, k = own.positions.rotate(q, ids_Nw), own.positions.rotate(k, ids_Nw)
            self.held.write(i, k.transpose(1, 2), v.transpose(1, 2), self.places_N)
            y_NHwD = _attend(q, *self.held.read(i, self.texts, slots), bias, own.scale)
            x_NwM = x_NwM + own.out(y_NHwD.transpose(1, 2).flatten(2))
            if self._sources is not None:
                assert isinstance(layer, DecoderLayer)
                cross = layer.cross_attention
                assert isinstance(cross, MultiHeadAttention)
                (q,) = cross.project(layer.cross_attention_norm(x_NwM), "q")
                memory = self._sources.held.read(i, self.texts, self._sources.longest)
                y_NHwD = _attend(q, *memory, self._sources.bias, cross.scale)
                x_NwM = x_NwM + cross.out(y_NHwD.transpose(1, 2).flatten(2))
            x_NwM = x_NwM + layer.mlp(layer.mlp_norm(x_NwM))
        return x_NwM if self.norm is None else self.norm(x_NwM)

    def read(self, text: int, x_1SM: Tensor) -> None:
        """Read the first S tokens of a text that has begun and has one hypothesis, in one pass."""
        size = x_1SM.shape[1]
        ids_S = torch.arange(size, device=x_1SM.device)
        for i, layer in enumerate(self.layers):
            own = _own_attention(layer)
            q, k, v = own.project(_own_norm(layer)(x_1SM), "qkv")
            if own.positions is not None:
                q, k = own.positions.rotate(q, ids_S), own.positions.rotate(k, ids_S)
            self.held.keys[i, text, :size, 0] = k[0].transpose(0, 1)
            self.held.values[i, text, :size, 0] = v[0].transpose(0, 1)
            y = attention(q, k, v, mask=masks.causal(), scale=own.scale)
            x_1SM = x_1SM + own.out(y.transpose(1, 2).flatten(2))
            x_1SM = x_1SM + layer.mlp(layer.mlp_norm(x_1SM))


class Translating:
    """The `Pass` of an encoder-decoder. Each text has a source, which the encoder reads; its first token is `begin`."""

    def __init__(self, model: EncoderDecoder, width: int, begin: int) -> None:
        self.model, self._begin = model, begin
        table, stack = model.target_embedding.weight, model.decoder
        self._sources = _Sources(list(stack.layers), table)  # type: ignore[arg-type]
        self._decoder = _Decoder(stack, table, width, self._sources)
        self._copied: list[tuple[Tensor, Tensor]] = []  # ids [K] and memory [K, M] of each source, if the model copies

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        model, device = self.model, self._decoder.places_N.device
        ids_NK, real_NK = (x.to(device) for x in padded_with_real(sources, 0))
        writer = pack_writer(model)
        if writer is None or writer.encoder is None:
            memory_TM = model.encode(ids_NK, real_NK)[real_NK]
        else:
            first = nn.functional.pad(real_NK.sum(1).cumsum(0), (1, 0))
            memory_TM = writer.encoder(model.embed_source(ids_NK)[real_NK], first)
        self._sources.join(memory_TM, real_NK, None if writer is None else writer.memory)
        if model.copy is not None:
            lengths = [len(source) for source in sources]
            self._copied += zip(ids_NK[real_NK].split(lengths), memory_TM.split(lengths), strict=True)
        self._decoder.begin([0] * len(sources), writer)
        return torch.full((len(sources),), self._begin, device=device)

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        model, decoder = self.model, self._decoder
        x_NwM = model.target_embedding(ids_Nw) * math.sqrt(model.config.dim)
        positions = model.positions if model.target_positions is None else model.target_positions
        if positions is not None:
            x_NwM = x_NwM + positions(decoder.places_N)[:, None].to(x_NwM.dtype)
        if model.copy is None:
            return decoder.logits(x_NwM)
        ids_NK, real_NK = (x.to(ids_Nw.device) for x in padded_with_real([ids.tolist() for ids, _ in self._copied], 0))
        memory_NKM = nn.utils.rnn.pad_sequence([memory for _, memory in self._copied], batch_first=True)
        return model.logits(decoder.hidden(x_NwM), memory_NKM, ids_NK, real_NK)

    def follow(self, parents_Nw: Tensor) -> None:
        self._decoder.follow(parents_Nw)

    def keep(self, order: Sequence[int]) -> None:
        self._decoder.keep(order)
        self._sources.keep(order)
        self._copied = [self._copied[i] for i in order] if self._copied else []


class Continuing:
    """The `Pass` of a decoder-only model, without beams. A text's source is its beginning, which is read first."""

    def __init__(self, model: CausalLanguageModel) -> None:
        self.model = model
        self._decoder = _Decoder(model.decoder, model.embedding.weight, 1)

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Read the beginning of each new text, except its last token, in one pass per text, so that none is padded."""
        begun, device = self._decoder.texts, self._decoder.places_N.device
        embedded = [
            self.model.embedding(torch.tensor([source[:-1]], dtype=torch.int64, device=device)) for source in sources
        ]
        self._decoder.begin([len(source) - 1 for source in sources], pack_writer(self.model))
        try:
            for text, x_1SM in enumerate(embedded):
                if x_1SM.shape[1]:
                    self._decoder.read(begun + text, x_1SM)
        except BaseException:
            self._decoder.keep(range(begun))  # so that none of them has joined
            raise
        return torch.tensor([source[-1] for source in sources], device=device)

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        return self._decoder.logits(self.model.embedding(ids_Nw))

    def follow(self, parents_Nw: Tensor) -> None:
        self._decoder.follow(parents_Nw)

    def keep(self, order: Sequence[int]) -> None:
        self._decoder.keep(order)


def _own_attention(layer: DecoderLayer | EncoderLayer) -> MultiHeadAttention:
    own = layer.self_attention if isinstance(layer, DecoderLayer) else layer.attention
    assert isinstance(own, MultiHeadAttention)
    return own


def _own_norm(layer: DecoderLayer | EncoderLayer) -> nn.Module:
    return layer.self_attention_norm if isinstance(layer, DecoderLayer) else layer.attention_norm


def _bias(hidden_NwS: Tensor, dtype: torch.dtype) -> Tensor:
    """Make a bias [N, 1, w, S] for attention: -inf where `hidden_NwS` is True, 0 elsewhere."""
    zeros = torch.zeros(hidden_NwS.shape, dtype=dtype, device=hidden_NwS.device)
    return zeros.masked_fill_(hidden_NwS, -math.inf)[:, None]


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Compute the attention of a few queries.

    The native kernel is faster for many keys; for few keys its call costs too much.
    """
    if k.shape[2] >= NATIVE_KEYS:
        call = make_call(q, k, v, bias=bias, scale=scale)
        if native_kernel.refuse(call) is None:
            return native_kernel.run(call)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

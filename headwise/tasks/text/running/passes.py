"""One token more for texts of different lengths: the passes of a decoder through its layers.

Hypotheses of one text share its source: they are queries of one call of cross-attention, whose keys are kept once; and
in self-attention they are heads, so that the texts are the batch in both. The numbers are those of the modules'
`forward`, whose parts are called here. Dimension letters: N texts, w hypotheses of each, M model, H heads, D head
dimension, S slots, K source tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from headwise import masks
from headwise.call import make_call
from headwise.functional import attention
from headwise.kernels import native
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.models.language_model import CausalLanguageModel
from headwise.nn import MultiHeadAttention
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.running.key_values import KeyValues

NATIVE_KEYS = 64  # with fewer keys, what a call costs beside its arithmetic decides


class _Decoder:
    """The layers of a decoder, and the tokens that each text has read.

    Args:
        layers: with norms before their branches.
        norm: behind them.
        width: w.
    """

    def __init__(self, layers: nn.ModuleList, norm: nn.Module | None, width: int, like: Tensor) -> None:
        self.layers: list[DecoderLayer | EncoderLayer] = list(layers)  # type: ignore[arg-type]
        self.norm, self.width = norm, width
        first = _own_attention(self.layers[0])
        self.held = KeyValues(len(self.layers), width * first.num_kv_heads, first.head_dim, like)
        self.places_N = torch.zeros(0, dtype=torch.int64, device=like.device)  # tokens read by each text
        self.longest = 0  # of them

    @property
    def texts(self) -> int:
        """N"""
        return len(self.places_N)

    def begin(self, read: Sequence[int]) -> None:
        """New texts, which have read so many tokens."""
        begun, longest = self.texts, max(self.longest, *read)
        self.held.make_room(begun + len(read), longest + 1)
        for text in range(begun, begun + len(read)):
            self.held.clear(text)
        self.places_N = torch.cat([self.places_N, self.places_N.new_tensor(read)])
        self.longest = longest

    def keep(self, order: Sequence[int]) -> None:
        self.held.move(order)
        self.places_N = self.places_N[list(order)]
        self.longest = int(self.places_N.max()) if len(order) else 0

    def follow(self, parents_Nw: Tensor) -> None:
        self.held.follow(parents_Nw, self.longest)

    def run(self, x_NwM: Tensor, source: tuple[KeyValues, Tensor] | None = None) -> Tensor:
        """Hidden states [N, w, M] of one token more in each hypothesis."""
        texts, slots = self.texts, self.longest + 1
        self.held.make_room(texts, slots)
        behind_NS = torch.arange(slots, device=x_NwM.device) > self.places_N[:, None]
        bias = _bias(behind_NS, x_NwM.dtype) if bool((self.places_N < self.longest).any()) else None
        for i, layer in enumerate(self.layers):
            own = _own_attention(layer)
            x_NwM = x_NwM + own.out(self._read_itself(i, own, _own_norm(layer)(x_NwM), bias))
            if source is not None:
                memory, memory_bias = source
                assert isinstance(layer, DecoderLayer)
                cross = layer.cross_attention
                assert isinstance(cross, MultiHeadAttention)
                (q_NHwD,) = cross.project(layer.cross_attention_norm(x_NwM), "q")
                y_NHwD = _attend(q_NHwD, *memory.read(i, texts, memory_bias.shape[-1]), memory_bias, cross.scale)
                x_NwM = x_NwM + cross.out(y_NHwD.transpose(1, 2).flatten(2))
            x_NwM = x_NwM + layer.mlp(layer.mlp_norm(x_NwM))
        self.places_N = self.places_N + 1
        self.longest += 1
        return x_NwM if self.norm is None else self.norm(x_NwM)

    def _read_itself(self, layer: int, own: MultiHeadAttention, x_NwM: Tensor, bias: Tensor | None) -> Tensor:
        texts, width = x_NwM.shape[:2]
        q, k, v = (y.transpose(1, 2).flatten(1, 2)[:, :, None] for y in own.project(x_NwM, "qkv"))  # [N, w · H, 1, D]
        if own.positions is not None:
            turned = own.positions.rotate(torch.cat([q, k], 1), self.places_N[:, None])
            q, k = turned[:, : q.shape[1]], turned[:, q.shape[1] :]
        self.held.write(layer, k[:, :, 0], v[:, :, 0], self.places_N)
        y = _attend(q, *self.held.read(layer, texts, self.longest + 1), bias, own.scale)
        return y.view(texts, width, -1)

    def read(self, text: int, x_1SM: Tensor) -> None:
        """The first S tokens of a text that has begun."""
        size = x_1SM.shape[1]
        ids_S = torch.arange(size, device=x_1SM.device)
        for i, layer in enumerate(self.layers):
            own = _own_attention(layer)
            q, k, v = own.project(_own_norm(layer)(x_1SM), "qkv")
            if own.positions is not None:
                q, k = own.positions.rotate(q, ids_S), own.positions.rotate(k, ids_S)
            self.held.keys[i, text, :, :size], self.held.values[i, text, :, :size] = k[0], v[0]
            y = attention(q, k, v, mask=masks.causal(), scale=own.scale)
            x_1SM = x_1SM + own.out(y.transpose(1, 2).flatten(2))
            x_1SM = x_1SM + layer.mlp(layer.mlp_norm(x_1SM))


class Translating:
    """An encoder-decoder: `Pass`. A text is a source; its first token is `begin`."""

    def __init__(self, model: EncoderDecoder, width: int, begin: int) -> None:
        self.model, self._begin = model, begin
        table = model.target_embedding.weight
        self._decoder = _Decoder(model.decoder.layers, model.decoder.norm, width, table)
        cross = self._decoder.layers[0].cross_attention
        assert isinstance(cross, MultiHeadAttention)
        self._memory = KeyValues(len(self._decoder.layers), cross.num_kv_heads, cross.head_dim, table)
        self._lengths: list[int] = []  # of the sources
        self._copied: list[tuple[Tensor, Tensor]] = []  # ids [K] and memory [K, M] of each, for a model that copies
        self._bias = table.new_zeros(0, 1, 1, 0)  # [N, 1, 1, K]: where a source ends

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        model, device = self.model, self._decoder.places_N.device
        ids_NK, real_NK = (x.to(device) for x in padded_with_real(sources, 0))
        memory_NKM = model.encode(ids_NK, real_NK)
        begun, lengths = len(self._lengths), [len(source) for source in sources]
        projected = [layer.cross_attention.project(memory_NKM, "kv") for layer in self._decoder.layers]  # type: ignore[union-attr,operator]
        self._memory.make_room(begun + len(sources), max(lengths))
        for text, length in enumerate(lengths):
            self._memory.clear(begun + text)
            for i, (k, v) in enumerate(projected):
                self._memory.keys[i, begun + text, :, :length] = k[text, :, :length]
                self._memory.values[i, begun + text, :, :length] = v[text, :, :length]
            if model.copy is not None:
                self._copied.append((ids_NK[text, :length], memory_NKM[text, :length]))
        self._decoder.begin([0] * len(sources))
        self._lengths += lengths
        self._see()
        return torch.full((len(sources),), self._begin, device=device)

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        model, decoder = self.model, self._decoder
        x_NwM = model.target_embedding(ids_Nw) * math.sqrt(model.config.dim)
        positions = model.positions if model.target_positions is None else model.target_positions
        if positions is not None:
            x_NwM = x_NwM + positions(decoder.places_N)[:, None].to(x_NwM.dtype)
        hidden_NwM = decoder.run(x_NwM, (self._memory, self._bias))
        if model.copy is None:
            return linear(hidden_NwM, model.target_embedding.weight)
        ids_NK, real_NK = (x.to(ids_Nw.device) for x in padded_with_real([ids.tolist() for ids, _ in self._copied], 0))
        memory_NKM = nn.utils.rnn.pad_sequence([memory for _, memory in self._copied], batch_first=True)
        return model.logits(hidden_NwM, memory_NKM, ids_NK, real_NK)

    def follow(self, parents_Nw: Tensor) -> None:
        self._decoder.follow(parents_Nw)

    def keep(self, order: Sequence[int]) -> None:
        self._decoder.keep(order)
        self._memory.move(order)
        self._lengths = [self._lengths[i] for i in order]
        self._copied = [self._copied[i] for i in order] if self._copied else []
        self._see()

    def _see(self) -> None:
        lengths_N = self._decoder.places_N.new_tensor(self._lengths)
        behind_NK = torch.arange(max(self._lengths, default=0), device=lengths_N.device) >= lengths_N[:, None]
        self._bias = _bias(behind_NK, self._memory.keys.dtype)


class Continuing:
    """A decoder-only model, without beams: `Pass`. A text is what it reads first."""

    def __init__(self, model: CausalLanguageModel) -> None:
        self.model = model
        self._decoder = _Decoder(model.decoder.layers, model.decoder.norm, 1, model.embedding.weight)

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """All but the last token of each is read at once, alone, so that a long one pads no others."""
        begun, device = self._decoder.texts, self._decoder.places_N.device
        embedded = [
            self.model.embedding(torch.tensor([source[:-1]], dtype=torch.int64, device=device)) for source in sources
        ]
        self._decoder.begin([len(source) - 1 for source in sources])
        try:
            for text, x_1SM in enumerate(embedded):
                if x_1SM.shape[1]:
                    self._decoder.read(begun + text, x_1SM)
        except BaseException:
            self._decoder.keep(range(begun))  # none of them has joined
            raise
        return torch.tensor([source[-1] for source in sources], device=device)

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        return linear(self._decoder.run(self.model.embedding(ids_Nw)), self.model.embedding.weight)

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


def _bias(behind_NS: Tensor, dtype: torch.dtype) -> Tensor:
    """-inf where a slot lies behind the end of a text, [N, 1, 1, S]."""
    return torch.zeros(behind_NS.shape, dtype=dtype, device=behind_NS.device).masked_fill(behind_NS, -math.inf)[
        :, None, None
    ]


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Attention of a few queries. The native kernel reads many keys faster; with few, its call costs more than them."""
    if k.shape[2] >= NATIVE_KEYS:
        call = make_call(q, k, v, bias=bias, scale=scale)
        if native.refuse(call) is None:
            return native.run(call)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

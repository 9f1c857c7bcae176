"""Mutation operators of attention, applied to a one-layer BERT and a one-layer GPT-2, and what the doctor calls them.

    python benchmarks/wild/operators.py            # a table
    python benchmarks/wild/operators.py SDS QHD    # the reports of some

The operators are those of DEFault++ (SigmaJahan/DEFaultplusplus-Transformer-Debugging, Apache-2.0) that name a fault of
attention: masks, projections, scores, kernels, heads and caches. Only their descriptions were used: here each is a few
lines in the attention itself, where the original changes a module's inputs, outputs or weights from outside. Operators
of embeddings, MLPs, norms, residuals and the output are not faults of attention, and are left out.

An operator is scored if it changes the output in eval mode, the random numbers in train mode, or what decoding gives.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Cache, GPT2Config, GPT2Model
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from headwise.doctor import diagnose_model

WIDTH, HEADS = 32, 4
SEVERITIES = {"bug": 0, "risk": 1, "note": 2}


class Attention(nn.Module):
    """The attention of both models, in steps that an operator replaces."""

    heads = HEADS
    dropout_rate = 0.1

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.split(*self.project(hidden_states))
        if past_key_values is not None:
            k, v = self.remember(past_key_values, k, v)
        scores = self.score(q, k)
        mask = self.mask(attention_mask, scores)
        weights = self.weigh(scores if mask is None else scores + mask)
        weights = self.drop(weights)
        return self.leave(self.merge(self.mix(weights, v))), weights

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return cache.update(k, v, self.layer_idx)  # type: ignore[no-any-return]

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        return mask

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def drop(self, weights: Tensor) -> Tensor:
        return nn.functional.dropout(weights, self.dropout_rate, self.training)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def leave(self, x: Tensor) -> Tensor:
        return x

    def begin(self) -> None:
        """Changes of the weights."""

    def thirds(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The weight [out, in] and bias of q, k and v, as views of the parameters."""
        raise NotImplementedError


class Bert(Attention, BertSelfAttention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query(x), self.key(x), self.value(x)

    def thirds(self) -> dict[str, tuple[Tensor, Tensor]]:
        named = {"q": self.query, "k": self.key, "v": self.value}
        return {name: (part.weight.data, part.bias.data) for name, part in named.items()}


class Gpt2(Attention, GPT2Attention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.c_attn(x).split(self.split_size, dim=2)  # type: ignore[no-any-return]

    def leave(self, x: Tensor) -> Tensor:
        return self.c_proj(x)  # type: ignore[no-any-return]

    def thirds(self) -> dict[str, tuple[Tensor, Tensor]]:
        parts = zip(self.c_attn.weight.data.split(WIDTH, 1), self.c_attn.bias.data.split(WIDTH), strict=True)
        return {name: (weight.t(), bias) for name, (weight, bias) in zip("qkv", parts, strict=True)}


# --- The operators ----------------------------------------------------------------------------------------------------


class Operator:
    """The base of all: what it does, the model it is for, and the findings that name it."""

    told: ClassVar[str]
    names: ClassVar[str]
    only: ClassVar[str] = ""


class MZM(Operator):
    told, names = "the mask is zeroed", "mask-ignored causal-leak"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        return None if mask is None else torch.zeros_like(mask)


class MIM(Operator):
    told, names = "the mask is inverted", "mask-polarity causal-leak"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        return None if mask is None else torch.where(mask < 0, 0.0, torch.finfo(mask.dtype).min)


class MRMBatch(Operator):
    told, names = "the mask of another example is used", "mask-head-order batch-mixing mask-broadcast"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        return None if mask is None else mask.roll(1, 0)


class MRMHead(Operator):
    told, names = "heads and examples of the mask are exchanged", "mask-head-order batch-mixing mask-broadcast"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        if mask is None:
            return None
        b, h = scores.shape[:2]
        return mask.expand(b, h, -1, -1).transpose(0, 1).reshape(b, h, *mask.shape[2:])


class MCB(Operator):
    told, names, only = "some future keys are visible", "causal-leak mask-ignored", "gpt2"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        if mask is None:
            return None
        q, k = (torch.arange(n, device=mask.device) for n in mask.shape[-2:])
        return mask.masked_fill((k[None] > q[:, None]) & ((3 * q[:, None] + k[None]) % 3 == 0), 0.0)


def zeroed(x: Tensor) -> None:
    """From outside of the attention, as by a wrong checkpoint."""
    x.zero_()


class Zeroed(Operator):
    which: ClassVar[str]

    def begin(self) -> None:
        for x in self.thirds()[self.which]:  # type: ignore[attr-defined]
            zeroed(x)


class QZQ(Zeroed):
    told, names, which = "the query projection is zero", "projection-zero", "q"


class QZK(Zeroed):
    told, names, which = "the key projection is zero", "projection-zero", "k"


class QZV(Zeroed):
    told, names, which = "the value projection is zero", "projection-zero", "v"


class QSW(Operator):
    told, names = "queries and keys are exchanged", "argument-order qkv-order"

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().split(k, q, v)  # type: ignore[misc, no-any-return]


class Tied(Operator):
    groups: ClassVar[tuple[tuple[int, ...], ...]]

    def begin(self) -> None:
        for weight, bias in self.thirds().values():  # type: ignore[attr-defined]
            for group in self.groups:
                for head in group[1:]:
                    a, b = (slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS) for h in (group[0], head))
                    weight[b], bias[b] = weight[a].clone(), bias[a].clone()


class QTHHalf(Tied):
    told, names, groups = "the first half of the heads is tied", "projection-reused", ((0, 1),)


class QTHAlternating(Tied):
    told, names, groups = "every second head is tied", "projection-reused", ((0, 2), (1, 3))


class QTHAll(Tied):
    told, names, groups = "all heads are tied", "projection-reused", ((0, 1, 2, 3),)


class QHDHalf(Operator):
    told, names, heads = "split into half as many heads", "head-split wrong-scale heads-not-stated", HEADS // 2


class QHDDouble(Operator):
    told, names, heads = "split into twice as many heads", "head-split wrong-scale heads-not-stated", HEADS * 2


class QHDSingle(Operator):
    told, names, heads = "split into one head", "head-split wrong-scale heads-not-stated", 1


class SDS(Operator):
    told, names = "1 / sqrt(d) is left out", "wrong-scale"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2)


class SPD(Operator):
    told, names = "dropout on the scores, before the softmax", "dropout-misplaced dropout-in-eval"

    def weigh(self, scores: Tensor) -> Tensor:
        return nn.functional.dropout(scores, 0.1, self.training).softmax(-1)  # type: ignore[attr-defined]


class SUC(Operator):
    told, names = "the scores are cast to fp16", "softmax-half"

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.half().softmax(-1).to(scores.dtype)


class KMD(Operator):
    told, names = "the kernel drops with a probability of its own, in eval mode too", "dropout-in-eval"

    def drop(self, weights: Tensor) -> Tensor:
        return nn.functional.dropout(weights, 0.3)


class Lowered(Operator):
    dtype: ClassVar[torch.dtype]

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        low = q.to(self.dtype) @ k.to(self.dtype).transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        return low.to(q.dtype)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights.to(self.dtype) @ v.to(self.dtype)).to(v.dtype)


class KRPHalf(Lowered):
    told, names, dtype = "the products are computed in fp16", "products-half softmax-half", torch.float16


class KRPBfloat(Lowered):
    told, names, dtype = "the products are computed in bf16", "products-half softmax-half", torch.bfloat16


class VSH(Operator):
    told, names = "only the first head has an effect", "unused-parameter head-idle"

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        x = weights @ v
        keep = (torch.arange(x.shape[1], device=x.device) == 0).to(x.dtype)
        return x * keep[:, None, None]


class VSHRouted(Operator):
    told, names = "all heads use the weights of the first", "head-idle projection-reused"

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights[:, :1] @ v


class VEC(Operator):
    told, names, only = "a causal mask in an encoder", "causal-unasked", "bert"

    def mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        n = scores.shape[-1]
        future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
        return scores.new_zeros(n, n).masked_fill(future, torch.finfo(scores.dtype).min) + (0 if mask is None else mask)


class CST(Operator):
    told, names, only = "keys and values of the step before are served", "cache-mismatch", "gpt2"

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held = cache.get_seq_length(self.layer_idx)  # type: ignore[attr-defined]
        k, v = cache.update(k, v, self.layer_idx)  # type: ignore[attr-defined]
        if held:
            k, v = (torch.cat([x[:, :, :held], x[:, :, held - 1 : -1]], 2) for x in (k, v))
        return k, v


class CDU(Operator):
    told, names, only = "the new keys and values are not kept", "cache-mismatch", "gpt2"

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held = cache.get_seq_length(self.layer_idx)  # type: ignore[attr-defined]
        if not held:
            return cache.update(k, v, self.layer_idx)  # type: ignore[no-any-return, attr-defined]
        layer = cache.layers[self.layer_idx]  # type: ignore[attr-defined]
        return torch.cat([layer.keys, k], 2), torch.cat([layer.values, v], 2)


class COB(Operator):
    told, names, only = "cached keys are shifted by one", "cache-mismatch", "gpt2"

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held = cache.get_seq_length(self.layer_idx)  # type: ignore[attr-defined]
        k, v = cache.update(k, v, self.layer_idx)  # type: ignore[attr-defined]
        return (k.roll(1, 2), v) if held else (k, v)


class CTR(Operator):
    told, names, only = "the cache keeps only the last keys", "cache-mismatch", "gpt2"

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[2]
        k, v = cache.update(k, v, self.layer_idx)  # type: ignore[attr-defined]
        if k.shape[2] > new:
            gone = torch.arange(k.shape[2], device=k.device) < k.shape[2] - new - 2
            k, v = (x.masked_fill(gone[:, None], 0.0) for x in (k, v))
        return k, v


class CLK(Operator):
    told, names, only = "keys of the last request are used again", "cache-mismatch state-kept", "gpt2"

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = getattr(self, "kept", None)
        self.kept = k.detach()
        if kept is not None and kept.shape == k.shape:
            k = torch.cat([kept[:, :, :1], k[:, :, 1:]], 2)
        return cache.update(k, v, self.layer_idx)  # type: ignore[no-any-return, attr-defined]


OPERATORS: tuple[type[Operator], ...] = (
    *(MZM, MIM, MRMBatch, MRMHead, MCB, QZQ, QZK, QZV, QSW, QTHHalf, QTHAlternating, QTHAll, QHDHalf, QHDDouble),
    *(QHDSingle, SDS, SPD, SUC, KMD, KRPHalf, KRPBfloat, VSH, VSHRouted, VEC, CST, CDU, COB, CTR, CLK),
)


# --- The models -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    model: nn.Module
    ids: Tensor
    padding: Tensor

    def run(self) -> Any:
        return self.model(self.ids, attention_mask=self.padding)


def build(family: str, operator: type | None = None) -> Case:
    """The model, with the operator in its attention."""
    torch.manual_seed(0)
    if family == "bert":
        size = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": 64}
        model: nn.Module = BertModel(BertConfig(vocab_size=50, **size, attn_implementation="eager"))
        attention: Any = model.encoder.layer[0].attention.self
    else:
        size = {"n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "vocab_size": 50, "n_positions": 64}
        model = GPT2Model(GPT2Config(**size, attn_implementation="eager"))
        attention = model.h[0].attn
    for name, x in model.named_parameters():  # trained: 0.02 gives weights that are all alike
        if x.ndim > 1 or "bias" in name:
            nn.init.normal_(x, std=0.3)
    plain = Bert if family == "bert" else Gpt2
    attention.__class__ = plain if operator is None else type(operator.__name__, (operator, plain), {})
    with torch.no_grad():
        attention.begin()
    draw = torch.Generator().manual_seed(1)
    padding = (torch.arange(7)[None] < torch.tensor([7, 5])[:, None]).long()
    return Case(model.eval(), torch.randint(0, 50, (2, 7), generator=draw), padding)


def observed(family: str, case: Case) -> list[Tensor]:
    """What an operator may change: the output, that of decoding, that of a second request, and train mode."""
    model = copy.deepcopy(case.model)
    with torch.no_grad():
        outs = [model(case.ids, attention_mask=case.padding)[0] for _ in range(2)]
        outs.append(model(case.ids.roll(1, 1), attention_mask=case.padding)[0])
        if family == "gpt2":
            past, steps = None, []
            for t in range(case.ids.shape[1]):
                out = model(case.ids[:, t : t + 1], past_key_values=past, use_cache=True)
                past = out.past_key_values
                steps.append(out.last_hidden_state)
            outs.append(torch.cat(steps, 1))
        torch.manual_seed(0)
        outs.append(model.train()(case.ids, attention_mask=case.padding)[0])
    return outs


def changes(family: str, operator: type) -> bool:
    before, after = (observed(family, build(family, x)) for x in (None, operator))
    return any(not torch.allclose(a, b, atol=1e-6) for a, b in zip(before, after, strict=True))


# --- The table --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Score:
    operator: str
    family: str
    told: str
    found: tuple[str, ...]  # "name (severity)", of those that may name it
    others: tuple[str, ...]  # other bugs
    severity: str  # the worst of `found`, or ""


def score(family: str, operator: type[Operator] | None) -> Score:
    case = build(family, operator)
    findings = [x for diagnosis in diagnose_model(case.model, case.run) for x in diagnosis.findings]
    wanted = operator.names.split() if operator else []
    fitting = sorted((x for x in findings if x.name in wanted), key=lambda x: SEVERITIES[x.severity])
    others = tuple(dict.fromkeys(x.name for x in findings if x.name not in wanted and x.severity == "bug"))
    found = tuple(dict.fromkeys(f"{x.name} ({x.severity})" for x in fitting))
    name, told = (operator.__name__, operator.told) if operator else ("none", "the model as it is")
    return Score(name, family, told, found, others, fitting[0].severity if fitting else "")


def scores(say: Callable[[Score], object] = lambda _: None) -> list[Score]:
    """Every operator that changes something, on every model that it is for."""
    found = []
    for family in ("bert", "gpt2"):
        for operator in OPERATORS:
            if operator.only in ("", family) and changes(family, operator):
                found.append(score(family, operator))
                say(found[-1])
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for family in ("bert", "gpt2"):
        for operator in OPERATORS if wanted else ():
            if operator.__name__ in wanted and operator.only in ("", family):
                case = build(family, operator)
                for diagnosis in diagnose_model(case.model, case.run):
                    print(diagnosis)
    if wanted:
        return
    print("| operator | model | what it does | named | other bugs |\n|---|---|---|---|---|")

    def row(x: Score) -> None:
        print(
            f"| {x.operator} | {x.family} | {x.told} | {', '.join(x.found) or '-'} | {', '.join(x.others) or '-'} |",
            flush=True,
        )

    for family in ("bert", "gpt2"):
        row(score(family, None))
    found = scores(row)
    for family in ("bert", "gpt2"):
        mine = [x for x in found if x.family == family]
        bugs, named = sum(x.severity == "bug" for x in mine), sum(x.severity in ("bug", "risk") for x in mine)
        print(f"\n{family}: {bugs} of {len(mine)} named as bugs, {named} as bugs or risks")


if __name__ == "__main__":
    main()

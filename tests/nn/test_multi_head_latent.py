"""Multi-head latent attention: numbers by hand, the paper's equations, both paths, the compressed cache, bad input."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import masks
from headwise.errors import ArgumentError, CacheError, CheckpointError, DtypeError, ShapeError
from headwise.functional import listening
from headwise.nn import Cache
from headwise.nn.multi_head_latent import MultiHeadLatentAttention
from headwise.nn.positions import Alibi, DynamicNTK, Rope, Yarn

H, N, P, E, R, M = 4, 8, 6, 5, 16, 24  # heads; not rotated, rotated and value dimensions; rank; width
SIZES: dict[str, Any] = {"q_rank": 12, "kv_rank": R, "nope_dim": N, "rope_dim": P, "value_head_dim": E}
YARN = Yarn(factor=40, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
PATHS = ("expand", "absorb")


def layer(**options: Any) -> MultiHeadLatentAttention:
    """A small module in float64, with weights large enough that its softmax is far from even."""
    made = MultiHeadLatentAttention(M, H, **{**SIZES, "dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]) + (parameter.ndim == 1))
    return made


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randn(batch, length, M, dtype=torch.float64)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: Tensor, position: int, base: float = 10000.0) -> Tensor:
    """One head's vector [P] at a position: each pair of neighbours is turned, as a complex number."""
    angle = position / base ** (torch.arange(0, P, 2, dtype=torch.float64) / P)
    pairs = torch.view_as_complex(x.reshape(-1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten()


def by_the_paper(m: MultiHeadLatentAttention, x: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, S, M] and weights [B, H, S, S], by DeepSeek-V2's equations 9-19, a token and a head at a time."""
    length = x.shape[1]
    w_dkv, w_kr = m.kv_down.weight.split((R, P))
    w_uk_uv = m.kv_up.weight.view(H, N + E, R)
    w_uq_qr = (m.q_up if m.q_rank else m.q).weight.view(H, N + P, -1)
    outs, rows = [], []
    for h in x:
        c = [rms_norm(w_dkv @ h_t, m.kv_norm.weight) for h_t in h]  # (9)
        k_r = [turned(w_kr @ h[t], t) for t in range(length)]  # (15)
        c_q = [rms_norm(m.q_down.weight @ h_t, m.q_norm.weight) for h_t in h] if m.q_rank else list(h)  # (12)
        heads, weights = [], []
        for i in range(H):
            k = torch.stack([torch.cat((w_uk_uv[i, :N] @ c[t], k_r[t])) for t in range(length)])  # (10), (17)
            v = torch.stack([w_uk_uv[i, N:] @ c[t] for t in range(length)])  # (11)
            q_c, q_r = zip(*((w_uq_qr[i] @ c_q[t]).split((N, P)) for t in range(length)), strict=True)  # (13)
            q = torch.stack([torch.cat((q_c[t], turned(q_r[t], t))) for t in range(length)])  # (14), (16)
            scores = torch.einsum("qd,kd->qk", q, k) / math.sqrt(N + P)
            weights.append(scores.masked_fill(~allowed, -math.inf).softmax(-1))
            heads.append(torch.einsum("qk,ke->qe", weights[-1], v))  # (18)
        outs.append(torch.einsum("qe,me->qm", torch.cat(heads, -1), m.out.weight))  # (19)
        rows.append(torch.stack(weights))
    return torch.stack(outs), torch.stack(rows)


class TestByHand:
    def test_yarns_mscale_enters_the_scale_once_and_the_rotation_not_at_all(self) -> None:
        # DeepSeek-V3: 128 + 64 dimensions, factor 40, mscale = mscale_all_dim = 1: m = 0.1 · ln 40 + 1 = 1.3688879454,
        # scale = m² / √192 = 1.8738542 / 13.8564065 = 0.13523378; cos and sin are times m / m = 1.
        sizes = {"kv_rank": 8, "nope_dim": 128, "rope_dim": 64, "value_head_dim": 4, "q_rank": None}
        made = MultiHeadLatentAttention(8, 2, **sizes, positions=Rope(64, interleaved=True, scaling=YARN))
        assert made.scale == pytest.approx(0.13523378, abs=1e-8)
        assert made.positions.amplitude == 1.0
        assert MultiHeadLatentAttention(8, 2, **sizes).scale == pytest.approx(0.0721688)  # 1/√192
        given = MultiHeadLatentAttention(8, 2, **sizes, positions=Rope(64, scaling=YARN), scale=0.5)
        assert given.scale == 0.5

    @pytest.mark.parametrize("path", PATHS)
    def test_that_scale_is_what_multiplies_the_scores(self, path: Any) -> None:
        m = layer(positions=Rope(P, interleaved=True, scaling=YARN))
        _, record = m(tokens(), path=path, record=True)
        assert record.scale == pytest.approx(1.3688879454**2 / math.sqrt(N + P))
        plain = copy.deepcopy(m)
        plain.positions, plain.scale = Rope(P, interleaved=True), 1.3688879454**2 / math.sqrt(N + P)
        x = tokens(length=1)  # at position 0 nothing is turned, so only the scale could differ
        torch.testing.assert_close(m(x, path=path), plain(x, path=path), atol=1e-12, rtol=0)

    def test_a_token_takes_r_plus_rope_numbers_of_the_cache(self) -> None:
        cache = Cache()
        m = MultiHeadLatentAttention(M, H, **SIZES)
        m(torch.randn(3, 5, M), cache=cache)
        assert cache.bytes == 3 * 5 * (R + P) * 4
        m(torch.randn(3, 1, M), cache=cache)
        assert cache.bytes == 3 * 6 * (R + P) * 4

    def test_auto_takes_the_path_with_fewer_multiplications(self) -> None:
        # A head: expand K·R·(N+E) + Q·K·(N+P+E) = 208 K + 19 QK, absorb Q·R·(N+E) + Q·K·(2R+P) = 208 Q + 38 QK.
        m = layer()
        assert m._absorbs("auto", 1, 2)  # 246 < 416 + 38, as 208 + 76 = 284 < 454
        assert not m._absorbs("auto", 1, 1)  # 246 > 227
        assert m._absorbs("auto", 5, 20)  # 1040 + 3800 < 4160 + 1900
        assert not m._absorbs("auto", 10, 20)  # 2080 + 7600 > 4160 + 3800
        # Ranks so low that the latents are shorter than keys and values: absorb costs less everywhere.
        assert layer(kv_rank=3, nope_dim=20)._absorbs("auto", 9, 9)

    def test_the_record_shows_what_was_attended_to(self) -> None:
        x, m = tokens(), layer()
        _, record = m(x, mask=masks.causal(), record=True)
        assert record.k.shape == (2, H, 7, N + P)
        _, record = m(x, mask=masks.causal(), path="absorb", record=True)
        assert record.k.shape == (2, 1, 7, R + P)
        assert (record.site.kind, record.site.causal) == ("self", True)


class TestBothPaths:
    @pytest.mark.parametrize("q_rank", [12, None])
    @pytest.mark.parametrize("path", PATHS)
    def test_outputs_weights_and_gradients_are_the_papers(self, path: Any, q_rank: int | None) -> None:
        m, x, causal = layer(q_rank=q_rank, path=path), tokens().requires_grad_(), torch.ones(7, 7).tril().bool()
        out, record = m(x, mask=masks.causal(), record=True)
        expected, weights = by_the_paper(m, x, causal)
        # Its phases are float64, the module's float32.
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(record.weights(), weights, atol=1e-6, rtol=0)
        direction, wanted = torch.randn_like(out), (x, *m.parameters())
        for found, right in zip(
            torch.autograd.grad((out * direction).sum(), wanted),
            torch.autograd.grad((expected * direction).sum(), wanted),
            strict=True,
        ):
            torch.testing.assert_close(found, right, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(
        "mask",
        [
            None,
            masks.causal(),
            masks.causal() & masks.window(2, 0),
            masks.documents([[0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 1, 1, 1]]),
            torch.rand(2, H, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.5,
        ],
        ids=["none", "causal", "window", "documents", "tensor"],
    )
    def test_float32_paths_agree_under_every_mask_with_padding_and_a_bias(self, mask: Any) -> None:
        m = layer(bias=True, positions=Rope(P, interleaved=True, scaling=YARN)).float()
        x, padding = tokens().float(), torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
        runs = [m(x, mask=mask, real=padding, path=path, record=True) for path in PATHS]
        torch.testing.assert_close(runs[0][0], runs[1][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(runs[0][1].weights(), runs[1][1].weights(), atol=1e-5, rtol=0)

    def test_the_module_says_the_path_and_a_call_may_say_another(self) -> None:
        m, x = layer(path="absorb"), tokens()
        assert m(x, record=True)[1].k.shape[1] == 1
        assert m(x, path="expand", record=True)[1].k.shape[1] == H
        assert m(x, path="auto", record=True)[1].k.shape[1] == H

    @pytest.mark.parametrize("path", PATHS)
    def test_dropout_is_off_when_evaluating(self, path: Any) -> None:
        m, x = layer(dropout=0.5, path=path), tokens()
        assert not torch.equal(m(x), m(x))
        m.eval()
        assert torch.equal(m(x), m(x))

    @pytest.mark.parametrize("path", PATHS)
    def test_autocast_keeps_the_cache_in_bfloat16(self, path: Any) -> None:
        m, x, cache = layer(path=path).float(), tokens().float(), Cache()
        with torch.autocast("cpu", torch.bfloat16):
            out = m(x, mask=masks.causal(), cache=cache)
        assert out.dtype == torch.bfloat16
        assert cache.bytes == 2 * 7 * (R + P) * 2
        torch.testing.assert_close(out.float(), m(x, mask=masks.causal()), atol=0.1, rtol=0)

    @pytest.mark.parametrize("path", PATHS)
    def test_a_module_in_bfloat16_runs(self, path: Any) -> None:
        m, x = layer(path=path), tokens()
        right, out = m(x), m.bfloat16()(x.bfloat16())
        torch.testing.assert_close(out.double(), right, atol=0.1, rtol=0)


class TestCache:
    @pytest.mark.parametrize("path", ["auto", *PATHS])
    @pytest.mark.parametrize("options", [{}, {"capacity": 9}], ids=["growing", "capacity"])
    def test_each_step_is_the_full_forward_at_that_position(self, options: Any, path: Any) -> None:
        m, x, cache = layer(path=path).eval(), tokens(length=9), Cache(**options)
        full = m(x, mask=masks.causal(), path="expand")
        with torch.no_grad():
            steps = [m(part, mask=masks.causal(), cache=cache) for part in x.split([3, 1, 1, 2, 1, 1], 1)]
        torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-12, rtol=0)
        assert cache.length == 9
        assert cache.bytes == 2 * 9 * (R + P) * 8

    @pytest.mark.parametrize("path", PATHS)
    def test_a_window_is_the_full_forward_with_that_mask(self, path: Any) -> None:
        m, x, cache, mask = layer(path=path).eval(), tokens(length=12), Cache(window=3), masks.window(3, 0)
        full = m(x, mask=mask)
        with torch.no_grad():
            steps = [m(part, mask=mask, cache=cache) for part in x.split([5, 1, 1, 1, 2, 1, 1], 1)]
        torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-12, rtol=0)
        assert cache.bytes == 2 * 3 * (R + P) * 8

    @pytest.mark.parametrize("path", PATHS)
    def test_left_padding_changes_nothing(self, path: Any) -> None:
        m, x, cache = layer(path=path).eval(), tokens(length=8), Cache()
        padding = torch.ones(2, 8, dtype=torch.bool)
        padding[1, :3] = False
        alone = m(x[1:, 3:], mask=masks.causal())
        with torch.no_grad():
            parts = [(x[:, :5], padding[:, :5]), *((x[:, i : i + 1], None) for i in range(5, 8))]
            steps = [m(part, mask=masks.causal(), cache=cache, real=real) for part, real in parts]
        out = torch.cat(steps, 1)
        torch.testing.assert_close(out[1:, 3:], alone, atol=1e-12, rtol=0)
        torch.testing.assert_close(out[:1], m(x[:1], mask=masks.causal()), atol=1e-12, rtol=0)
        torch.testing.assert_close(m(x, mask=masks.causal(), real=padding)[1:, 3:], alone, atol=1e-12, rtol=0)

    def test_a_step_attends_to_the_memory_of_the_cache_itself(self) -> None:
        m, cache = layer(path="absorb").eval(), Cache(capacity=8)
        heard: list[Tensor] = []
        with torch.no_grad(), listening(lambda call, _: heard.extend((call.k, call.v))):
            m(tokens(), cache=cache)
            m(tokens(length=1), cache=cache)
        assert [x.shape[2:] for x in heard] == [(7, R + P), (7, R), (8, R + P), (8, R)]
        assert len({x.data_ptr() for x in heard}) == 1

    def test_position_ids_say_where_tokens_stand(self) -> None:
        m, x = layer(), tokens()
        shifted = m(x, position_ids=torch.arange(7) + 100)
        torch.testing.assert_close(shifted, m(x), atol=1e-5, rtol=0)  # only distances matter, to float32 phases
        assert not torch.allclose(m(x, position_ids=torch.arange(7) * 2), m(x), atol=1e-3)


class TestWeights:
    def test_initial_weights_are_those_of_the_paper(self) -> None:
        sizes = {"kv_rank": 128, "nope_dim": 64, "rope_dim": 32, "value_head_dim": 64, "q_rank": 96}
        m = MultiHeadLatentAttention(256, 4, bias=True, **sizes)
        for module in (m.q_down, m.q_up, m.kv_down, m.kv_up, m.out):
            assert module.weight.std().item() == pytest.approx(0.006, rel=0.05)
        nn.init.zeros_(m.kv_norm.weight)
        nn.init.ones_(m.out.bias)
        m.reset_parameters()
        assert bool((m.kv_norm.weight == 1).all())
        assert not bool(m.out.bias.any())

    def test_a_state_dict_makes_the_round_trip(self) -> None:
        m, x = layer(bias=True), tokens()
        other = layer(bias=True)
        other.load_state_dict(m.state_dict())
        assert torch.equal(other(x), m(x))
        names = {name.split(".")[0] for name in m.state_dict()}
        assert names == {"q_down", "q_norm", "q_up", "kv_down", "kv_norm", "kv_up", "out"}

    @pytest.mark.parametrize("q_rank", [12, None])
    def test_deepseeks_own_names_load(self, q_rank: int | None) -> None:
        ours = {"q": "wq", "q_down": "wq_a", "q_up": "wq_b", "kv_down": "wkv_a", "kv_up": "wkv_b", "out": "wo"}
        m, other, x = layer(q_rank=q_rank), layer(q_rank=q_rank), tokens()
        state = {name.split(".")[0]: weight for name, weight in m.state_dict().items()}
        other.load_state_dict({f"{ours.get(name, name)}.weight": weight for name, weight in state.items()})
        assert torch.equal(other(x), m(x))

    def test_a_projection_that_is_there_twice_is_refused(self) -> None:
        state = layer().state_dict()
        state["kv_b_proj.weight"] = state["kv_up.weight"]
        with pytest.raises(CheckpointError, match=r"kv_up\.weight, kv_b_proj\.weight"):
            layer().load_state_dict(state)

    def test_a_config_makes_the_module(self) -> None:
        config = {
            **{"model_type": "deepseek_v3", "hidden_size": 24, "num_attention_heads": 4, "rms_norm_eps": 0.1},
            **{"q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 5},
            **{"attention_bias": False, "attention_dropout": 0.25, "max_position_embeddings": 163840},
            "rope_theta": 50000.0,
            "rope_scaling": {
                **{"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
                **{"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096},
            },
        }
        m = MultiHeadLatentAttention.from_hf(config, path="absorb")
        assert (m.dim, m.num_heads, m.q_rank, m.kv_rank, m.value_head_dim, m.dropout) == (24, 4, None, 16, 5, 0.25)
        assert (m.positions.interleaved, m.positions.base, m.positions.scaling) == (True, 50000.0, YARN)
        assert m.scale == pytest.approx(1.3688879454**2 / math.sqrt(14))
        assert (m.kv_norm.eps, m.path) == (1e-6, "absorb")
        with pytest.raises(CheckpointError, match="a config without v_head_dim"):
            MultiHeadLatentAttention.from_hf({**config, "v_head_dim": None})
        with pytest.raises(CheckpointError, match="'minicpm3'"):
            MultiHeadLatentAttention.from_hf({**config, "model_type": "minicpm3"})

    def test_repr_shows_what_shapes_do_not(self) -> None:
        assert layer(path="absorb").extra_repr() == (
            "24, 4, q_rank=12, kv_rank=16, nope_dim=8, rope_dim=6, value_head_dim=5, scale=0.267261, path='absorb'"
        )


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rope_dim": 5}, "rope_dim: expected an even number"),
            ({"kv_rank": 0}, "kv_rank: expected a whole number of at least 1. Received: kv_rank=0"),
            ({"q_rank": -1}, "q_rank: expected a whole number"),
            ({"nope_dim": 2.0}, "nope_dim"),
            ({"value_head_dim": 0}, "value_head_dim"),
            ({"dropout": 1.0}, "dropout"),
            ({"path": "both"}, "path: expected one of 'auto', 'expand', 'absorb'. Received: path='both'"),
            ({"kernel": "fast"}, "kernel: expected one of 'auto'"),
            ({"scale": math.nan}, "scale must be a finite number"),
            ({"positions": Alibi(H)}, "positions: expected a headwise.nn.positions.Rope. Received: positions=Alibi"),
            ({"positions": Rope(N)}, "head_dim=8. Received: head_dim=6"),
            ({"positions": Rope(P, scaling=DynamicNTK(2.0, 64))}, "do not depend on the length"),
        ],
    )
    def test_constructor(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            layer(**options)

    def test_heads(self) -> None:
        with pytest.raises(ArgumentError, match="num_heads"):
            MultiHeadLatentAttention(M, 0, **SIZES)

    def test_another_sequence(self) -> None:
        m, x = layer(), tokens()
        assert torch.equal(m(x, x, x), m(x))
        with pytest.raises(ArgumentError, match=r"key: .*MultiHeadAttention"):
            m(x, x.clone())
        with pytest.raises(ArgumentError, match="value: "):
            m(x, x, x.clone())

    def test_shapes_and_kinds(self) -> None:
        m, x = layer(), tokens()
        with pytest.raises(ShapeError, match="query"):
            m(x[..., :3])
        with pytest.raises(ShapeError, match=r"x\[None\]"):
            m(x[0])
        with pytest.raises(DtypeError, match="real"):
            m(x, real=torch.ones(2, 7))
        with pytest.raises(ShapeError, match="position_ids"):
            m(x, position_ids=torch.arange(3))
        with pytest.raises(DtypeError, match="bool"):
            m(x, mask=torch.zeros(7, 7))
        with pytest.raises(ArgumentError, match="'fast'"):
            m(x, path="fast")

    def test_a_cache_that_is_anothers_of_another_batch_or_full(self) -> None:
        m, x = layer(), tokens()
        cache = Cache(capacity=7)
        m(x, cache=cache)
        with pytest.raises(CacheError, match="another module"):
            layer()(x, cache=cache)
        with pytest.raises(CacheError, match="not enough free slots"):
            m(x[:, :1], cache=cache)
        cache = Cache()
        m(x, cache=cache)
        with pytest.raises(CacheError, match="B=2"):
            m(x[:1], cache=cache)

    def test_absorb_does_not_read_past_what_was_put_around_kv_up(self) -> None:
        class Doubled(nn.Module):
            def __init__(self, inner: nn.Linear) -> None:
                super().__init__()
                self.inner, self.weight = inner, inner.weight

            def forward(self, x: Tensor) -> Tensor:
                return 2 * self.inner(x)

        m, x = layer(), tokens()
        m.kv_up = Doubled(m.kv_up)
        assert m(x[:, :1], cache=Cache(), record=True)[1].k.shape[1] == H  # auto expands
        cache = Cache()
        m(x, cache=cache)
        assert m(x[:, :1], cache=cache, record=True)[1].k.shape[1] == H
        with pytest.raises(ArgumentError, match=r"Received: .*Doubled"):
            m(x, path="absorb", cache=cache)
        assert cache.length == 8

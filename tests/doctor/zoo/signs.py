"""How the mistakes show that leave the ordinary output right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.doctor.zoo.reference import BATCH, LENGTH, turn_halves

Make = Callable[[], nn.Module]


def ready(make: Make, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return make().eval()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def refuses(module: Any, *arguments: Tensor) -> bool:
    try:
        module(*arguments)
    except RuntimeError:
        return True
    return False


def steps_differ(make: Make) -> bool:
    """Four tokens at once and then one at a time do not give what all at once give."""
    module, x = ready(make), numbers(BATCH, 12, 48)
    part, past = module(x[:, :4])
    parts = [part]
    for i in range(4, 12):
        part, past = module(x[:, i : i + 1], past)
        parts.append(part)
    return not torch.allclose(torch.cat(parts, dim=1), module(x)[0], atol=1e-4)


def rows_always_add_up(make: Make) -> bool:
    """Weights dropped after the softmax no longer add up to one; scores dropped before it do."""
    module = ready(make).train()
    nn.init.zeros_(module.v_linear.weight)
    nn.init.ones_(module.v_linear.bias)
    nn.init.eye_(module.out.weight)
    nn.init.zeros_(module.out.bias)
    x = numbers(BATCH, LENGTH, 48)
    return torch.allclose(module(x, x, x), torch.ones(()))


def weights_are_elsewhere(make: Make) -> bool:
    """Two modules with one state dict compute different things."""
    one, other, x = ready(make), ready(make, seed=5), numbers(BATCH, LENGTH, 48)
    other.load_state_dict(one.state_dict())
    return not torch.allclose(one(x), other(x), atol=1e-4)


def angles_are_rough(make: Make) -> bool:
    """In bfloat16 the rotation is off by much more than bfloat16's rounding, far from the beginning."""
    module = ready(make).bfloat16()
    x = numbers(1, 1, 900, 12)
    cos, sin = module.rotary_emb(x)
    turned = x * cos + torch.cat([-x[..., 6:], x[..., :6]], dim=-1) * sin
    return bool((turned - turn_halves(x.double())).abs().max() > 0.1)


def one_map_for_all_heads(make: Make) -> bool:
    _, weights = ready(make)(numbers(BATCH, LENGTH, 48))
    return weights.shape == (BATCH, LENGTH, LENGTH)


def fails_in_half(make: Make) -> bool:
    return refuses(ready(make).half(), numbers(BATCH, LENGTH, 48).half(), torch.ones(BATCH, LENGTH))


def empty_rows_are_nan(make: Make) -> bool:
    mask = torch.arange(LENGTH) >= torch.tensor([0, 1, 3])[:, None]
    return bool(ready(make)(numbers(BATCH, LENGTH, 48), mask).isnan().any())


def nan_leaks(make: Make) -> bool:
    x, mask = numbers(BATCH, LENGTH, 48), torch.ones(BATCH, LENGTH)
    x[:, -2:], mask[:, -2:] = torch.nan, 0.0
    return bool(ready(make)(x, mask)[:, :-2].isnan().any())


def large_is_nan(make: Make) -> bool:
    return bool(ready(make)(1000 * numbers(BATCH, LENGTH, 48)).isnan().any())


def without_gradient(name: str) -> Callable[[Make], bool]:
    def shows(make: Make) -> bool:
        module = ready(make)
        module(numbers(BATCH, LENGTH, 48)).square().sum().backward()
        return module.get_parameter(name).grad is None

    return shows


def training_differs(make: Make) -> bool:
    module, x = ready(make), numbers(BATCH, LENGTH, 64)
    return not torch.allclose(module(x), module.train()(x), atol=1e-4)


def input_changes(make: Make) -> bool:
    x, y = numbers(BATCH, LENGTH, 48), numbers(BATCH, LENGTH, 48)
    with torch.no_grad():
        ready(make)(x, y, y)
    return not torch.equal(x, y)


def remainder_is_accepted(make: Make) -> bool:
    try:
        make()
    except AssertionError:
        return False
    return True


SIGNS: dict[str, Callable[[Make], bool]] = {
    "sdpa.DecoderAttention": steps_differ,
    "classic.CourseAttention": rows_always_add_up,
    "heads.HeadsModule": weights_are_elsewhere,
    "rotary.LongContextAttention": angles_are_rough,
    "rotary.CachedRotaryAttention": steps_differ,
    "rotary.StretchedAttention": steps_differ,
    "eager.EagerAttention": one_map_for_all_heads,
    "eager.DeviceAttention": fails_in_half,
    "course.PaddedCausalAttention": empty_rows_are_nan,
    "course.BufferAttention": nan_leaks,
    "course.ScratchAttention": large_is_nan,
    "course.MapAttention": without_gradient("q_proj.weight"),
    "course.ClipAttention": lambda make: refuses(ready(make), numbers(1, LENGTH, 48)),
    "course.NormAttention": without_gradient("k_norm.weight"),
    "course.FastAttention": training_differs,
    "course.FlatAttention": lambda make: refuses(ready(make), numbers(LENGTH, BATCH, 48).transpose(0, 1)),
    "course.QueryAttention": input_changes,
    "course.HeadsAttention": remainder_is_accepted,
}

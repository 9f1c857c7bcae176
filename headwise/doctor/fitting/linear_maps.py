"""The linear maps of a module: its Linears, equivalent layers, and parameters used in a product."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from headwise.doctor.fitting.projection_names import Named, read_name


def linear_maps(module: nn.Module, stated: Mapping[str, str]) -> list[LinearMap]:
    """All linear maps of the module in the order of registration."""
    by_path = {path: role for role, path in stated.items()}
    vectors = {path: p for path, p in module.named_parameters() if p.ndim == 1 or _is_bias(path)}
    maps: list[LinearMap] = []
    seen: set[int] = set()
    for path, part in _parts(module):
        weight = part._parameters.get("weight")
        if isinstance(part, (nn.Embedding, nn.LayerNorm)):
            continue
        matrix = _matrix(part)
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in seen or parameter.ndim < 2:
                continue
            seen.add(id(parameter))
            if matrix is not None and parameter is weight:
                bias = part._parameters.get("bias")
                maps.append(LinearMap(read_name(path or name, by_path.get(path)), matrix, _float64(bias), True))
                continue
            full = f"{path}.{name}" if path else name
            if _is_bias(name) or "emb" in name.lower() or "pos" in name.lower():
                continue
            named = read_name(full, by_path.get(full))
            maps.append(
                LinearMap(named, parameter.detach().double(), _float64(_own_bias(named, vectors, parameter)), False)
            )
    return maps


@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap:
    """One linear map of the module: a Linear, a Conv1D, or a parameter used in a product."""

    name: Named
    tensor: Tensor  # Linear: [in, out]; parameter: as it is
    bias: Tensor | None
    oriented: bool

    @property
    def path(self) -> str:
        return self.name.path

    def entered_by(self, width: int) -> Iterator[Tensor]:
        """Its weights as [width, ...], once for each axis that may be the input."""
        if self.oriented:
            if self.tensor.shape[0] == width:
                yield self.tensor
            return
        axes = [axis for axis, size in enumerate(self.tensor.shape) if size == width]
        if self.tensor.ndim == 2 and "weight" in self.path:  # as in nn.Linear and nn.MultiheadAttention
            axes.reverse()
        for axis in axes:
            yield self.tensor.movedim(axis, 0)

    def left_by(self, width: int) -> Iterator[Tensor]:
        """Its weights as [..., out], where the other axes have `width` entries together."""
        if self.oriented:
            if self.tensor.shape[0] == width:
                yield self.tensor
            return
        last = self.tensor.ndim - 1
        for axis in (last, *range(last)):
            if self.tensor.numel() == width * self.tensor.shape[axis]:
                yield self.tensor.movedim(axis, -1)


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All submodules, including those in plain lists, which are not registered."""
    for path, part in module.named_modules():
        yield path, part
        for name, value in vars(part).items():
            if isinstance(value, (list, tuple)) and value and all(isinstance(x, nn.Module) for x in value):
                for i, hidden in enumerate(value):
                    for below, inner in hidden.named_modules():
                        yield ".".join(x for x in (path, name, str(i), below) if x), inner


def _is_bias(path: str) -> bool:
    """`q_bias`, `b_Q`, `bo`: a bias with one row per head may have two dimensions."""
    return "bias" in path.lower() or bool(re.fullmatch(r"b_?(q|k|v|o|qkv|kv|out)", path.rpartition(".")[2].lower()))


def _matrix(part: nn.Module) -> Tensor | None:
    """The weights of a Linear or an equivalent layer, as [in, out]."""
    weight = part._parameters.get("weight")
    if weight is None:
        return None
    if type(part).__name__ == "Conv1D" and weight.ndim == 2:  # GPT-2's, [in, out]
        return weight.detach().double()
    if isinstance(part, (nn.Conv1d, nn.Conv2d)):
        is_linear = weight[0, 0].numel() == 1 and part.groups == 1
        return weight.detach().double().flatten(1).t() if is_linear else None
    if weight.ndim == 2 and (isinstance(part, nn.Linear) or hasattr(part, "in_features")):
        return weight.detach().double().t()
    return None


def _own_bias(named: Named, vectors: Mapping[str, Tensor], parameter: Tensor) -> Tensor | None:
    """The bias that belongs to a raw parameter: `in_proj_bias` to `in_proj_weight`, `b_q` to `w_q`."""
    parent = named.path.rpartition(".")[0]
    beside = {path: x for path, x in vectors.items() if path.rpartition(".")[0] == parent and path != named.path}
    for path, vector in beside.items():
        if "bias" in path and path.replace("bias", "weight") == named.path:
            return vector
    for path, vector in beside.items():
        last = path.rpartition(".")[2].lower()
        other = read_name(path)
        same = (other.letters, other.is_output) == (named.letters, named.is_output)
        if same and (named.letters or named.is_output) and (last.startswith("b") or "bias" in last):
            return vector
    for path, vector in beside.items():  # one bias for all three, as in nn.MultiheadAttention
        each = vector.numel() // 3
        if read_name(path).is_fused and len(named.letters) == 1:
            return vector.unflatten(0, (3, each))["qkv".index(named.letters)] if each in parameter.shape else None
    return None


def _float64(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().double()

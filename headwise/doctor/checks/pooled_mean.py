"""A weighted sum over the tokens that is divided by their number once more: `mean` where `sum` is meant.

If all tokens are alike, weights that sum to 1 give the same result for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Softmaxes
from headwise.doctor.probing.probe import ROUNDING, Probe, gap

FINDINGS = ("normaliser-wrong",)

_FEW, _MANY = 5, 10  # tokens


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    no_pool = NotApplicable("it does not pool any number of tokens")
    if probe.interface.takes != "self" or probe.interface.length is not None:
        raise no_pool
    alike = probe.inputs(length=_MANY).each(lambda x: x[:, :1].expand_as(x).clone())
    outs = []
    with Softmaxes() as softmaxes:
        for inputs in (alike.each(lambda x: x[:, :_FEW]), alike):
            out = probe.attempt(inputs)
            if not isinstance(out, Tensor) or out.shape[1] != 1:
                raise no_pool
            outs.append(out)
    if not softmaxes.heard:
        raise NotApplicable("it calls no softmax")
    few, many = outs
    if few.shape == many.shape and bool(few.any()) and gap(few, many * (_MANY / _FEW)) < ROUNDING:
        yield Finding(
            "normaliser-wrong",
            "bug",
            f"all tokens are alike, and the output for {_MANY} of them is half of that for {_FEW}: the weighted sum is "
            "divided by the number of tokens once more",
            "sum over the tokens: (weights * values).sum(dim), as the weights sum to 1 already",
        )

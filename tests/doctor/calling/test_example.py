"""The example of a call, in the forms that people write."""

import pytest
import torch

import headwise
from headwise.doctor.calling.example import as_example
from headwise.errors import DtypeError

X, MASK = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (((X,), {"mask": MASK}), (X,), {"mask": MASK}),
        ([[X], {}], (X,), {}),
        ((X, MASK), (X, MASK), {}),
        (X, (X,), {}),
        ({"x": X}, (), {"x": X}),
        ((X, {"mask": MASK}), (X, {"mask": MASK}), {}),  # a dict that is an argument
    ],
)
def test_an_example_has_the_form_that_people_write(given, args, kwargs):
    found, named = as_example(given)
    assert all(one is other for one, other in zip(found, args, strict=True) if isinstance(one, torch.Tensor))
    assert len(found) == len(args)
    assert set(named) == set(kwargs)


def test_something_else_is_refused():
    assert as_example(None) is None
    with pytest.raises(DtypeError, match="example must be the arguments of a call"):
        headwise.diagnose(torch.nn.Linear(8, 8), example=3)

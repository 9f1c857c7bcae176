"""The language of the formulas, and the names that a spreadsheet takes."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.errors import WorksheetError
from headwise.worksheet.formulas import Formula, readable

NAMES = {
    "X": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "Scale": np.array([[0.5]]),
    "b_Q": np.array([[10.0, 20.0]]),
    "Masked": np.array([[-np.inf, 2.0], [-np.inf, -np.inf]]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Scale*X[i,j]", [[0.5, 1], [1.5, 2]]),
        ("X[j,i]", [[1, 3], [2, 4]]),
        ("SUM(X[i,:])+X[1,j]", [[4, 5], [8, 9]]),
        ("SUMPRODUCT(X[i,:],X[j,:])", [[5, 11], [11, 25]]),
        ("INDEX(X,X[1,j],0)", None),
        ("INDEX(X,i,2)", [[2, 2], [4, 4]]),
        ("X[i,j]^2-(-1)^j", [[2, 3], [10, 15]]),
        ("IF(X[i,j]=2,7,IF(X[i,j]>=3,-1,0))", [[0, 7], [-1, -1]]),
        ("MAX(Masked[i,:])", [[2, 2], [0, 0]]),
        ("IF(ISNUMBER(Masked[i,j]),EXP(Masked[i,j]-MAX(Masked[i,:])),0)", [[0, 1], [0, 0]]),
        ('IF(i=j,"−∞",1)', [[-np.inf, 1], [1, -np.inf]]),
        ("IF(0=0,0,1/0)", None),
        ("SQRT(SUMSQ(X[i,:]))/SQRT(DEVSQ(X[i,:])*2)", [[5**0.5, 5**0.5], [5, 5]]),
        ("INT(-(X[i,j]/2))+MIN(3,X[i,j])", [[0, 1], [1, 1]]),
        ("NORMSDIST(0)+COS(0)+TANH(0)+LN(1)+ABS(-1)+SIN(PI()/2)", [[3.5, 3.5], [3.5, 3.5]]),
    ],
)
def test_cells_are_computed_as_a_spreadsheet_does(text: str, expected: list[list[float]] | None) -> None:
    if expected is None:  # a row where a cell is wanted, or a division by 0, is a mistake of ours
        with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
            Formula((text,)).values((2, 2), NAMES)
        return
    np.testing.assert_allclose(Formula((text,)).values((2, 2), NAMES), expected)


def test_a_whole_matrix_and_a_formula_for_each_column() -> None:
    product = Formula(("MMULT(X,TRANSPOSE(X))+b_Q",), whole=True)
    np.testing.assert_array_equal(product.values((2, 2), NAMES), [[15, 31], [21, 45]])
    columns = Formula(("X[i,2]", "-X[i,1]"))
    np.testing.assert_array_equal(columns.values((2, 2), NAMES), [[2, -1], [4, -3]])
    assert columns.summary == "-X[i,1]"
    assert not columns.is_uniform


def test_references_become_addresses() -> None:
    def address(name: str, row: int | None, col: int | None) -> str:
        return f"<{name} {row} {col}>"

    formula = Formula(('IF(Mask[i,j]=1,SUM(X[i,:])*Scale+X[:,j],"i,j −∞")',))
    assert formula.addressed(2, 3, address) == 'IF(<Mask 2 3>=1,SUM(<X 2 None>)*Scale+<X None 3>,"i,j −∞")'


def test_a_formula_is_readable() -> None:
    assert readable("MMULT(X,W_Q_1)+b_Q_1") == "MMULT(X, W_Q_1) + b_Q_1"
    assert readable("(X[i,j]-Mean[i,1])/SQRT(V[i,1]+Eps)*G[1,j]") == (
        "(X[i,j] - Mean[i,1]) / SQRT(V[i,1] + Eps) * G[1,j]"
    )
    assert readable("Rope_base^(-2*(j-1)/4)") == "Rope_base^(-2 * (j - 1) / 4)"


def test_an_overflow_is_an_error() -> None:
    with pytest.raises(WorksheetError, match="it overflows"):
        Formula(("EXP(1000*X[i,j])",)).values((2, 2), NAMES)

"""Worksheets: one attention computation, step by step, as a spreadsheet that the reader can follow and change.

    headwise.worksheet.write(module, x, "attention.xlsx", mask=masks.causal(), tokens=["I", "drink", "and"])
    headwise.worksheet.make(module, x).show()                        # the same in the terminal
    headwise.worksheet.of_weight(seen, layer=3, head=5, row="it", col="animal")     # one weight of a record

A workbook has one sheet per step, with live formulas: change a number, and all later steps are recalculated. The same
steps can be written as Markdown (.md) and as a page (.html). Only the workbook needs XlsxWriter.
"""

from headwise.worksheet.description import Axis, Matrix, Step
from headwise.worksheet.make import make, write
from headwise.worksheet.of_weight import of_weight
from headwise.worksheet.sheet import Worksheet

__all__ = ["Axis", "Matrix", "Step", "Worksheet", "make", "of_weight", "write"]

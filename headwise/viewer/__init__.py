"""The viewer: one offline HTML page that shows every head of every layer, and computes the weights in the browser."""

from headwise.viewer.facts import facts_of
from headwise.viewer.inputs import Axis, Input, Layer, Stack, inputs_of
from headwise.viewer.page import blocks_of, page_of, write_page

__all__ = ["Axis", "Input", "Layer", "Stack", "blocks_of", "facts_of", "inputs_of", "page_of", "write_page"]

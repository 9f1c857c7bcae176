"""The viewer: one offline HTML page that shows every head of every layer, and computes the weights itself."""

from headwise.viewer.page import TextAttention, write_page

__all__ = ["TextAttention", "write_page"]

"""Shared by tasks on text: subwords, windows, masks for a language model, and writing of text token by token."""

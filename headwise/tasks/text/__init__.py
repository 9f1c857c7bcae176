"""Code that tasks on text share: subwords, windows, masks for a language model, and writing of text token by token."""

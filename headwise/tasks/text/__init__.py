"""What tasks on text share: subwords, windows, masks for a language model, and how text is written token by token."""

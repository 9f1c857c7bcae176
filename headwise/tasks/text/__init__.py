"""Code that tasks on text share: subwords, windows, and generation of text token by token."""

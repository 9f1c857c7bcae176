"""Code of `Match`: comparing images with texts, and the contrastive loss."""

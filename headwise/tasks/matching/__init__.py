"""Code of `Match`: it compares images and texts; the contrastive loss."""

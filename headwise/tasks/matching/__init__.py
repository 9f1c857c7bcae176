"""Parts of `Match`: comparison of images and texts, and the contrastive loss."""

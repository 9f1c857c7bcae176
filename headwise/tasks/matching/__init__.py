"""What `Match` is made of: images and texts that are compared, and how telling them apart is learned."""

"""The training loop: from a recipe and images to a checkpoint."""

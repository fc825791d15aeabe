"""The training loop, which turns a recipe and images into a checkpoint."""

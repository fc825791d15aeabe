"""Image sources, and the data loaders that turn them into batches."""

"""Complete settings of a training run, by name."""

"""What a training run writes down while it runs."""

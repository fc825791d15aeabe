"""What happens around the steps of a training run."""

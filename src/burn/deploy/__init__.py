"""From a trained network to what a small computer runs."""

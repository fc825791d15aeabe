"""Files that a training run writes while it trains."""

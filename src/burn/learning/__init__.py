"""The loop in which networks learn, and what happens around its steps in any training."""

"""BURN, the paper's method."""

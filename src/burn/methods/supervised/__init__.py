"""Supervised baselines."""

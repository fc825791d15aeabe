"""Protocols that evaluate a checkpoint."""

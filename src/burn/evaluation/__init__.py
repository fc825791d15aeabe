"""Protocols that measure a checkpoint."""

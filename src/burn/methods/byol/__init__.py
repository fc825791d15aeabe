"""BYOL."""

"""MoCo v2."""

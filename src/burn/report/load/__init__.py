"""Reads folders of runs and results into plain values."""

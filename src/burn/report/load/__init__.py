"""From folders of runs and results to plain values."""

"""Gradients of the classifier beside those of the extractor (paper, Figures 3 and 6)."""

"""Gradients of the classifier and of the extractor (paper, Figures 3 and 6)."""

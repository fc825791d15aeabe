"""Campaigns of many runs at one budget: comparisons of methods and ablations of a recipe."""

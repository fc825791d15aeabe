"""Recipes: complete settings of training runs, by name."""

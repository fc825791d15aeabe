"""Generators of docs/project/results/, its pictures, and tables of other documents."""

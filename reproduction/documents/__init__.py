"""Generators of docs/project/results.md, its pictures, and tables of other documents."""

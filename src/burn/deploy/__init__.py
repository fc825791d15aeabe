"""Conversion of trained networks to files for other runtimes and small computers."""

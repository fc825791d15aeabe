"""A module for each format that images are stored in."""

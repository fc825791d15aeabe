"""Files that an evaluation writes besides its results."""

"""Files that hold trained networks."""

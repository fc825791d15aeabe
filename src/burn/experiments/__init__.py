"""The paper's small experiments and counts, which `burn analyze` runs."""

"""The paper's small experiments, which `burn analyze` runs."""

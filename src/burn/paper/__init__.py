"""The paper's numbers, and the groups of variants that its ablations compare."""

"""The shapes of λ(t) (paper, Table 7)."""

"""Two moving networks that chase each other (paper, Figure 5)."""

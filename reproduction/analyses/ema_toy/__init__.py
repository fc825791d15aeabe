"""The paper's toy experiment on a target that follows its network by EMA (Figure 5)."""

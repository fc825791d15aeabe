"""Few-shot and full linear SVMs on VOC07: the solver and the protocol."""

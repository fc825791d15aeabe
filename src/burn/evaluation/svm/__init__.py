"""Linear SVMs on VOC07, full and few-shot: the solver and the protocol."""

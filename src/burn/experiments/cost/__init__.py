"""Operations, parameters and bytes of a network, and the cost of training it."""

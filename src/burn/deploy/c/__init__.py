"""Export of packed files as C for microcontrollers."""

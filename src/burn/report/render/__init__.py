"""Tables, curves and pictures."""

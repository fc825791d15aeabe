"""The ways to train a backbone: a module for each, behind one interface."""

"""A module for each command, whose `run` takes its arguments."""

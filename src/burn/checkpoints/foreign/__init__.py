"""Files of other projects: teachers' weights and published binary networks."""

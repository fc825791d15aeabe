"""Methods that train a backbone, one module each, with a common interface."""

"""The commands, one module each. Every `run` raises UserError for errors that the user can fix."""

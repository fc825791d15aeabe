"""The commands, one module each.

Every `run` takes the words after the command's name, raises UserError for errors that the user can
fix, and returns the command to type next, if there is one.
"""

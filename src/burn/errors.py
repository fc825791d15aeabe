"""The error that is the user's to mend."""


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what it was and what to do.

    The command line prints it as one line and exits with status 2.
    """

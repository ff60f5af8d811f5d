"""The exception for mistakes that the user can correct."""


class InputError(ValueError):
    """A value from outside that cannot be used.

    The message is one sentence: what is wrong, the value, what to do. The command line prints it
    and exits with code 2. Any other exception is a defect and keeps its traceback.

    Example:
        >>> import headscape as hs
        >>> try:
        ...     hs.load("no-such-folder")
        ... except hs.InputError as error:
        ...     print(error)
        there is no folder no-such-folder.
    """

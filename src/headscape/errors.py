"""The one exception that is the user's to mend."""


class InputError(ValueError):
    """A value from outside that cannot be served.

    The message is one sentence that names the value and the way out. The command line prints it
    and exits with code 2; anything else that is raised is a defect and keeps its traceback.
    """

"""The one exception that speaks to users."""


class BettyError(ValueError):
    """Something that the user can put right: a flag, a file, a graph.

    The message is one line: what is wrong, where, and what to do. Command lines print it without a traceback and
    exit with code 2.
    """

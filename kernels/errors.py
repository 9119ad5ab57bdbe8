"""The error that the kernels raise for an invalid argument."""


class ArgumentError(ValueError):
    """An invalid argument.

    Attributes:
        argument: Name of the argument.
        expected: What it should have been.
        actual: What it was.
    """

    def __init__(self, argument: str, expected: str, actual: str) -> None:
        super().__init__(f"{argument}: expected {expected}, got {actual}")
        self.argument = argument
        self.expected = expected
        self.actual = actual

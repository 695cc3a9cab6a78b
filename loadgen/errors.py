"""What can go wrong before or around a run, as one line for the user each.

LoadgenError                the base: a message that says what, where, and what to do
├── UsageError              the command line or a file it names is wrong            exit status 2
├── NoVerdictError          nothing could be measured                               exit status 3
└── StoppedError            a second signal ended it at once                        exit status 130 or 143

What goes wrong with a single request is no exception: it is that request's outcome (analysis.record.OUTCOMES).
"""


class LoadgenError(Exception):
    """A message for the user; `exit_status` is what the command ends with."""

    exit_status = 2


class UsageError(LoadgenError):
    """The command line, a workload file or a run directory cannot be used."""


class NoVerdictError(LoadgenError):
    """The target gave nothing to measure."""

    exit_status = 3


class StoppedError(LoadgenError):
    """The run was ended before its results were written out."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status

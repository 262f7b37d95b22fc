"""Every error a user can meet; each message says what happened, to what, and what to do.

TidegateError
├── UsageError                exit 2: the command or declaration is wrong, nothing was changed
│   ├── SettingsError         a setting is missing, unknown or malformed
│   ├── UnknownTable          no lake of the project has such a table
│   ├── AmbiguousTable        several lakes have it; `choices` are their names in full
│   ├── KeyReused             an idempotency key was given to other work before
│   ├── StateDamaged          a state file is not whole; it is kept as it is
│   └── DeclarationError      a sync declares something unsafe or impossible
├── BusyError                 exit 75: somebody else holds the lock, try again
│   └── SourceBusy            the source is being changed, or locked; plan again
├── ConnectionFailed          a database cannot be reached or refuses us
├── DestinationError          the destination cannot take the rows
│   ├── TargetGone            the target was dropped or emptied under its watermark
│   ├── LedgerBehind          a lake holds loads that its ledger knows nothing of
│   ├── TargetUnknown         the target holds rows, and no load into it is recorded
│   ├── DriftRefused          the source's columns changed, and the target does not follow
│   ├── ViewsFailed           some views could not be refreshed; the others are
│   ├── ChecksFailed          more rows fail their checks than the declaration allows
│   ├── RemovalRefused        more of the target would be removed than is done unasked
│   └── StagingLost           staged rows vanished before publishing; stage again
├── SourceError               the source cannot be read as declared
│   ├── ValueRefused          a value that cannot be read, or that the destination cannot hold
│   ├── SourceChanged         columns or types are not those that were planned with; plan again
│   ├── SnapshotGone          a lake no longer knows the snapshot that was loaded last
│   ├── SourceReplaced        it is another server or database, or was set back
│   └── ChangesLost           a slot no longer holds all that came after the last load
├── TransformError            the user's function failed or returned something unusable
├── TaskFailed                the user's task raised an error
├── LoadError                 a load failed; the message carries the cause
├── MaintenanceFailed         some actions on a lake's table failed; the others are done
├── WatermarkMoved            somebody moved the watermark meanwhile; plan again
├── CommitUnknown             the answer to COMMIT was lost and could not be resolved
├── ControlMismatch           the destination belongs to another control plane
└── StaleAttempt              this attempt was replaced; it must not write
    └── FenceLost             the destination's fence says so
"""

from __future__ import annotations

import re
import traceback
from typing import ClassVar

# From the first quote to the last: what stands between may hold quotes itself.
_QUOTED = re.compile(r"""(?<!\w)'.*'(?!\w)|".*"|(?<=[: ])["'].*""", re.DOTALL)
# What these quote are names of the program's own.
_OF_NAMES = (AttributeError, ImportError, NameError, OSError, SyntaxError, TypeError)
_OF_SPARK_PLANS = ("AnalysisException", "ParseException")
KEY_IN_LOG = "the log .tidegate/logs/failures.log has a key"


class TidegateError(Exception):
    """Something went wrong; `hint` says what to do about it.

    Messages reach histories, answers and notices, so they hold nothing of what is in rows;
    `detail` may, and goes into the log on this machine alone.
    """

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False
    permanent: ClassVar[bool] = False
    """trying again does not help until somebody has changed something"""

    def __init__(self, message: str, hint: str | None = None, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(TidegateError):
    """The command or declaration is wrong; nothing was changed."""

    exit_code = 2
    permanent = True


class SettingsError(UsageError):
    """A setting is missing, unknown or malformed."""


class UnknownTable(UsageError):
    """No lake of the project has such a table."""


class AmbiguousTable(UsageError):
    """Several lakes of the project have such a table."""

    def __init__(self, message: str, hint: str, choices: tuple[str, ...]) -> None:
        super().__init__(message, hint)
        self.choices = choices


class KeyReused(UsageError):
    """An idempotency key was given to other work before."""


class StateDamaged(UsageError):
    """A state file is not whole, or of another version; it is kept as it is."""


class DeclarationError(UsageError):
    """A sync declares something unsafe or impossible."""


class BusyError(TidegateError):
    """Somebody else holds the lock; try again."""

    exit_code = 75
    transient = True


class SourceBusy(BusyError):
    """The source is being changed, or locked by others; plan again when that has ended."""


class ConnectionFailed(TidegateError):
    """A database cannot be reached or refuses us."""

    transient = True


class SourceError(TidegateError):
    """The source cannot be read as declared."""


class ValueRefused(SourceError):
    """A value of the source that cannot be read, or that the destination cannot hold."""

    permanent = True


class SourceChanged(SourceError):
    """Columns or types of the source are not those that were planned with; plan again."""

    transient = True


class SnapshotGone(SourceError):
    """What a lake's table has gone through since the last load cannot be told any more."""

    permanent = True


class SourceReplaced(SourceError):
    """It is not the server or database that rows were loaded from, or lacks some of them."""

    permanent = True


class ChangesLost(SourceError):
    """What a table has gone through since the last load cannot be told any more by its slot."""

    permanent = True


class DestinationError(TidegateError):
    """The destination cannot take the rows."""


class TargetGone(DestinationError):
    """The target was dropped or emptied while its watermark remains."""

    permanent = True


class LedgerBehind(DestinationError):
    """A lake's table holds loads of a sync that its ledger knows nothing of."""

    permanent = True


class TargetUnknown(DestinationError):
    """The target holds rows, no load into it is recorded, and rows would be doubled."""

    permanent = True


class DriftRefused(DestinationError):
    """The source's columns changed in a way that the target does not follow."""

    permanent = True


class ChecksFailed(DestinationError):
    """More rows fail their checks than the declaration allows."""

    permanent = True


class RemovalRefused(DestinationError):
    """More of the target would be removed than is done unasked; nothing was changed."""

    permanent = True


class ViewsFailed(DestinationError):
    """Some materialized views could not be refreshed; the message says which, and why."""

    permanent = True


class StagingLost(DestinationError):
    """Staged rows vanished before publishing; they must be staged again."""

    transient = True


class TransformError(TidegateError):
    """The user's transformation failed or returned something unusable."""


class TaskFailed(TidegateError):
    """The user's task raised an error; the message carries it."""


class LoadError(TidegateError):
    """A load failed; the message carries the cause."""


class MaintenanceFailed(TidegateError):
    """Some actions on a lake's table failed; the message says which, and which are done."""

    permanent = True


class WatermarkMoved(TidegateError):
    """Somebody moved the watermark meanwhile; the work must be planned again."""

    transient = True


class CommitUnknown(TidegateError):
    """The answer to COMMIT was lost and the marker could not be read either."""

    transient = True


class ControlMismatch(TidegateError):
    """The destination table belongs to another control plane."""

    permanent = True


class StaleAttempt(TidegateError):
    """This attempt was replaced by another; it must not write anything."""


class FenceLost(StaleAttempt):
    """The destination's fence belongs to a newer attempt."""


def without_values(text: str) -> str:
    """A text without what it quotes: values of rows, as a database or Spark shows them."""
    return _QUOTED.sub("…", text)


def words(error: BaseException, text: str | None = None) -> str:
    """What an error says, in a line that holds nothing of a row; ours says it as it is.

    `text` is what it says where that is known better.
    """
    if isinstance(error, TidegateError):
        return str(error)
    name = type(error).__name__
    if text is None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = lines[0] if lines else ""
    # Of Postgres' errors only data exceptions quote values.
    of_names = not str(getattr(error, "sqlstate", None) or "22").startswith("22")
    if not (of_names or isinstance(error, _OF_NAMES) or name.startswith(_OF_SPARK_PLANS)):
        text = without_values(text)
    return f"{name}: {text}" if text else name


def safe_traceback(error: BaseException) -> str:
    """Where an error came from and what each in its chain says, without what is in rows."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if cause is None else f"{safe_traceback(cause)}\nwhich led to:\n\n"
    return "".join((before, *traceback.format_tb(error.__traceback__), words(error), "\n"))

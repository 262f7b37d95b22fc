"""Renew the leases of a process, wake its threads."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from types import TracebackType

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from tidegate.core.errors import TidegateError
from tidegate.core.log import log
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import Claim
from tidegate.jobs.lease import Lease, Leave, now
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.postgres.connection import Connection, cut
from tidegate.version import __version__


class Waker:
    """A wait that ends when a session has news, when it is woken, or when its time is up."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._in, b"x")

    def wait(self, connection: Connection | None, seconds: float) -> bool:
        """Whether the session has something to say; a closed one never has."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        listening = -1
        if connection is not None and not connection.closed:
            listening = connection.fileno()
            poll.register(listening, select.POLLIN)
        ready = {number for number, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._out in ready:
            os.read(self._out, 4096)
        return listening in ready

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)


_TRUSTED_SECONDS = 1.0


@dataclass(slots=True)
class KeptSessions:
    """Opening a session, and planning its first statements, costs more than a small job does."""

    plane: ControlDatabase
    _idle: list[tuple[Connection, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A session for one job; it is kept for the next one, unless the job failed."""
        connection = self._take() or self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def close(self) -> None:
        """End those that nobody uses; the others end when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _open(self) -> Connection:
        connection = self.plane.connect()
        # A worker's sessions are its own, so what it asks again and again is planned once.
        connection.prepare_threshold = 1
        return connection

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            # The server may have gone, and come back, since it was last used.
            if now() - since < _TRUSTED_SECONDS or _answers(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            with self._lock:
                if not self._closed:
                    self._idle.append((connection, now()))
                    return
        connection.close()


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


# What a session is asked here takes milliseconds, on a busy machine perhaps a second.
_ANSWER_SECONDS = 10.0
_QUICKEST_ANSWER_SECONDS = 1.0


class Heartbeat:
    """Owns the worker's session, whose advisory lock says to all that this process is there.

    One thread beats and listens for cancels. Another watches the clock, since a beat over a dead
    network may hang: it cuts that session, and gives up what it could not renew.
    """

    def __init__(
        self,
        plane: ControlDatabase,
        worker: WorkerIdentity,
        *,
        lease_seconds: float,
        interval_seconds: float,
    ) -> None:
        self.worker = worker
        self.lease_seconds = lease_seconds
        self.sessions = KeptSessions(plane)
        self._plane = plane
        self._jobs = Jobs(plane)
        self._interval = interval_seconds
        # Time enough for one more try after a beat that failed.
        self._margin = min(interval_seconds, lease_seconds / 3)
        # A session that is given up early leaves time to beat over another.
        self._answer_seconds = max(
            _QUICKEST_ANSWER_SECONDS, min(_ANSWER_SECONDS, lease_seconds / 6)
        )
        self._connection: Connection | None = None
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._joining = threading.Lock()
        self._awaited: dict[int, tuple[Connection, float]] = {}
        self._stopping = threading.Event()
        self._locked = False
        self._waker = Waker()
        self._threads = [
            threading.Thread(target=run, name=f"tidegate-{name}", daemon=True)
            for name, run in (("heartbeat", self._beat_on), ("lease-watch", self._watch))
        ]

    def __enter__(self) -> Heartbeat:
        return self

    def join(self) -> None:
        """Take the place on the register of workers, once, before the first claim."""
        with self._joining:
            if self._connection is None:
                self._connection = self._open(register=True)
                for thread in self._threads:
                    thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._waker.wake()
        self.sessions.close()
        connection = self._connection
        if connection is not None:
            for thread in self._threads:
                thread.join()
            with suppress(psycopg.Error):
                Workers(self._plane).forget(connection, self.worker)
            connection.close()
        self._waker.close()

    def hold(
        self,
        claim: Claim,
        *,
        since: float,
        interrupt: Callable[[], None],
        leave: Leave | None = None,
    ) -> Lease:
        """Renew an attempt from now on; `since` is when its claim was sent."""
        lease = Lease(claim, since + self.lease_seconds, interrupt=interrupt, leave=leave)
        with self._lock:
            before = self._leases.get(claim.attempt_id)
            self._leases[claim.attempt_id] = lease
        if before is not None:
            before.end()
            if before.is_lost:
                lease.lose("lost before its work began")
        return lease

    def drop(self, lease: Lease) -> None:
        """An attempt has ended: there is nothing to renew."""
        lease.end()
        with self._lock:
            self._leases.pop(lease.claim.attempt_id, None)

    def leases(self) -> list[Lease]:
        """The attempts that are held now."""
        with self._lock:
            return list(self._leases.values())

    @contextmanager
    def answered_soon(self, connection: Connection) -> Iterator[None]:
        """Cut a session that does not answer, as over a dead network; the caller then goes on."""
        with self._lock:
            self._awaited[id(connection)] = (connection, now() + self._answer_seconds)
        try:
            yield
        finally:
            with self._lock:
                del self._awaited[id(connection)]

    def beat(self) -> None:
        """Renew once; a lost session is opened again, a lost attempt is final."""
        leases = [lease for lease in self.leases() if not lease.is_lost]
        sent_at = now()
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._open(register=False)
            with self.answered_soon(self._connection):
                if not self._locked:
                    # A session of ours that only the server still believes in may have the lock.
                    self._locked = Workers(self._plane).rejoin(self._connection, self.worker)
                mine = self._jobs.beat(
                    self._connection,
                    self.worker.worker_id,
                    [lease.claim for lease in leases],
                    self.lease_seconds,
                )
        except (psycopg.Error, TidegateError) as error:
            log.warning("heartbeat_failed", error=str(error).splitlines()[0])
            if self._connection is not None:
                self._connection.close()
            return
        for lease in leases:
            if lease.claim.attempt_id in mine:
                lease.renew(sent_at + self.lease_seconds)
            elif self._should_hold(lease):
                lease.lose("replaced")

    def _should_hold(self, lease: Lease) -> bool:
        """Whether it has not ended by itself while a beat was on its way."""
        attempts = {held.claim.attempt_id for held in self.leases()}
        return not lease.is_settling and lease.claim.attempt_id in attempts

    def _beat_on(self) -> None:
        next_beat = now() + self._interval
        while not self._stopping.is_set():
            connection = self._connection
            lost = connection is None or connection.closed
            # After a failed beat there is no time to lose.
            pause = min(self._interval, 1.0) if lost else max(0.0, next_beat - now())
            heard = self._waker.wait(connection, pause)
            if self._stopping.is_set():
                return
            if heard and connection is not None:
                self._hear(connection)
            if lost or connection is None or connection.closed or now() >= next_beat:
                self.beat()
                next_beat = now() + self._interval

    def _hear(self, connection: Connection) -> None:
        """Cancels arrive between the beats."""
        try:
            told = [notify.payload for notify in connection.notifies(timeout=0)]
        except psycopg.Error as error:
            log.warning("heartbeat_failed", error=str(error).splitlines()[0])
            connection.close()
            return
        for lease in self.leases():
            if lease.claim.attempt_id in told:
                lease.lose("cancelled")

    def _watch(self) -> None:
        while not self._stopping.wait(self._until_next_look()):
            for lease in self.leases():
                if not lease.is_lost and lease.remaining_seconds() < self._margin:
                    lease.lose("its lease is running out")
            with self._lock:
                awaited = list(self._awaited.values())
            for connection, until in awaited:
                if now() > until:
                    cut(connection)

    def _until_next_look(self) -> float:
        running_out = [
            lease.remaining_seconds() - self._margin for lease in self.leases() if not lease.is_lost
        ]
        return max(0.05, min([self._margin / 4, 1.0, *running_out]))

    def _open(self, *, register: bool) -> Connection:
        connection = self._plane.connect()
        try:
            with self.answered_soon(connection):
                if register:
                    Workers(self._plane).register(connection, self.worker, __version__, _versions())
                self._locked = register
                channel = sql.Identifier(self._plane.channel("cancels"))
                connection.execute(sql.SQL("LISTEN {}").format(channel))
        except BaseException:
            connection.close()
            raise
        return connection


def _versions() -> dict[str, str]:
    """What else a worker runs with, for whoever compares two of them."""
    found = {}
    for name in ("pyspark", "psycopg"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

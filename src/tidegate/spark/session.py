"""The Spark session: own or the user's, kept warm."""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidegate.config import SparkSettings
from tidegate.core.errors import TidegateError, UsageError
from tidegate.spark.java import choose_java
from tidegate.spark.tags import interrupt, work_tag
from tidegate.spark.user_code import UserCode, ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def borrow(conf: Mapping[str, str]) -> SparkSession | None:
    """A session of our own in the Spark that this process runs already, if it does.

    It has settings of its own, so that those of the user's sessions stay as they are.
    """
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    builder: Any = SparkSession.builder
    session: SparkSession = builder.getOrCreate().newSession()
    for key, value in conf.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def is_stopped(session: Any) -> bool:
    """Whether somebody has stopped it meanwhile, or its JVM is gone."""
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        return bool(session.is_stopped)
    return not _answers(session.sparkContext)


def forget_dead_jvm() -> None:
    """Let pyspark start a JVM again: it would go on asking for one that has died."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None or _answers(context):
        return
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            with suppress(Exception):
                SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkSession._instantiatedSession = None


def _answers(context: Any) -> bool:
    """Whether its JVM is there and has not been told to stop."""
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except Exception:
        return False


# The first two print every failed expression on the terminal, with its stack; the others speak up
# when a connection breaks.
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j", "pyspark")
_BYTES = 10_000_000
_FILES = 3


def keep_off_the_terminal(path: Path) -> None:
    """Send the loggers of pyspark and py4j to a file of bounded size."""
    from pyspark.logger import PySparkLogger

    file = RotatingFileHandler(
        path, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8", delay=True
    )
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in _LOGGERS:
        # Made as pyspark makes it, or pyspark would make its own over it.
        context = name.endswith("ContextLogger")
        logger = PySparkLogger.getLogger(name) if context else logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logging.Logger.addHandler(logger, file)
        logger.propagate = False


_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

# The same results wherever Spark runs.
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
_OWN_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": "tidegate.spark.daemon",
}


class SparkSessions:
    """Opens the session that the settings ask for, once."""

    def __init__(
        self,
        settings: SparkSettings,
        state_directory: Path,
        conf: Callable[[], Mapping[str, str]] = dict,
        *,
        beside: bool = False,
    ) -> None:
        """`beside`: there may be another Spark in this process, which must not notice."""
        self._settings = settings
        self._beside = beside
        self._conf = conf
        self._state = state_directory
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        self._shipping = threading.Lock()
        self._sent: set[str] = set()
        self._borrowed = False
        self._apart: WeakSet[SparkSession] = WeakSet()

    @property
    def started(self) -> bool:
        return self._session is not None

    def get(self) -> SparkSession:
        """The session; starting one takes a few seconds the first time."""
        with self._lock:
            if self._session is None or is_stopped(self._session):
                self._sent.clear()
                if self._session is not None and not self._settings.remote:
                    forget_dead_jvm()
                self._session = self._borrow()
                self._borrowed = self._session is not None
            if self._session is None:
                self._session = self._start()
            return self._session

    def separate(self, conf: Mapping[str, str]) -> SparkSession:
        """A session apart, in the same Spark: what is set in it is set nowhere else."""
        given = {**_DEFAULTS, **conf}
        if self._settings.remote:
            builder = self._remote_builder()
            for key, value in given.items():
                builder = builder.config(key, value)
            session: SparkSession = builder.remote(self._settings.remote).create()
            self._apart.add(session)
            return session
        session = self.get().newSession()
        for key, value in given.items():
            session.conf.set(key, value)
        return session

    def parallelism(self) -> int:
        """How many tasks run at once."""
        if self._settings.remote:
            return 4
        return int(self.get().sparkContext.defaultParallelism)

    def ship(self, code: UserCode, separate: SparkSession | None = None) -> None:
        """Let the workers import the user's modules, in this session or in a separate one."""
        session, sent = (self.get(), self._sent) if separate is None else (separate, set())
        with self._shipping:
            ship(session, code, sent, remote=self._settings.remote is not None)

    def interrupt(self, attempt_id: str) -> None:
        """Give up the Spark work of one attempt, if there is any."""
        # A Spark Connect server knows the tags of each session by themselves.
        for session in (self._session, *self._apart):
            if session is not None:
                interrupt(session, work_tag(attempt_id))

    def stop(self) -> None:
        """Stop Spark if it was started here and still runs; who had one before keeps it."""
        if self._session is not None and not self._borrowed and not is_stopped(self._session):
            self._session.stop()
        self._session = None
        self._sent.clear()

    def _remote_builder(self) -> Any:
        if self._beside:
            # The other builder marks the whole process as one that uses Spark Connect alone.
            from pyspark.sql.connect.session import SparkSession as RemoteSession

            return RemoteSession.builder
        from pyspark.sql import SparkSession

        return SparkSession.builder

    def _borrow(self) -> SparkSession | None:
        if self._settings.remote:
            return None
        return borrow({**_DEFAULTS, **self._settings.conf})

    def _start(self) -> SparkSession:
        logs = self._state / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        if self._settings.remote is None:
            _provide_java()
        # Where Spark is started from Python, it looks at the variable only.
        if python := self._settings.conf.get("spark.pyspark.python"):
            os.environ["PYSPARK_PYTHON"] = str(python)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        self._configure_logging(logs)
        keep_off_the_terminal(logs / "spark-python.log")
        with _stderr_to(logs / "spark-console.log"):
            try:
                return self._build()
            except TidegateError:
                raise
            except Exception as error:
                raise TidegateError(
                    f"Spark did not start: {_reason(error)}",
                    f"see {logs / 'spark-console.log'}, and try: tidegate doctor"
                    + self._about_packages(),
                ) from error

    def _about_packages(self) -> str:
        """What is fetched over the network is the first thing to fail without one."""
        packages = self._conf().get("spark.jars.packages")
        if not packages:
            return ""
        return (
            f"; it had to fetch {packages}: without a network bring the files here and name them "
            'in [spark.conf], "spark.jars" = "FILE,FILE"'
        )

    def _build(self) -> SparkSession:
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder
        conf = {**self._defaults(), **self._settings.conf, **self._conf()}
        if not self._settings.remote:
            conf |= {"spark.master": self._settings.master} if self._settings.master else {}
            self._launch_jvm(conf)
        for key, value in conf.items():
            builder = builder.config(key, value)
        if self._settings.remote:
            # One of our own: workers keep what they imported for a session.
            session: SparkSession = builder.remote(self._settings.remote).create()
        else:
            session = builder.appName("tidegate").getOrCreate()
        return session

    def _launch_jvm(self, conf: Mapping[str, str]) -> None:
        """Start the JVM with what is set in a private file: a command line is for all to read."""
        if "PYSPARK_GATEWAY_PORT" in os.environ or _jvm_runs():
            return
        from pyspark import SparkContext

        folder = self._state / "spark"
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".properties", dir=folder)  # 0600
        given = os.environ.get("PYSPARK_SUBMIT_ARGS")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(f"{_escaped(k)}={_escaped(v)}\n" for k, v in conf.items())
            os.environ["PYSPARK_SUBMIT_ARGS"] = (
                f"--properties-file {shlex.quote(name)} --load-spark-defaults "
                f"{given or 'pyspark-shell'}"
            )
            SparkContext._ensure_initialized()
        finally:
            Path(name).unlink()
            os.environ.pop("PYSPARK_SUBMIT_ARGS")
            if given is not None:
                os.environ["PYSPARK_SUBMIT_ARGS"] = given

    def _defaults(self) -> dict[str, str]:
        if self._settings.remote:
            return _DEFAULTS
        local = {**_LOCAL_DEFAULTS, **_private()} if _is_local(self._settings.master) else {}
        return {**_DEFAULTS, **_OWN_DEFAULTS, **local}

    def _configure_logging(self, logs: Path) -> None:
        # A cluster's own configuration lies there, and must be found.
        if not _is_local(self._settings.master) or "SPARK_CONF_DIR" in os.environ:
            return
        folder = self._state / "spark"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.properties").write_text(
            _LOG4J.format(log=(logs / "spark.log").as_posix()), encoding="utf-8"
        )
        os.environ["SPARK_CONF_DIR"] = str(folder)


@cache
def _private() -> dict[str, str]:
    """On a host that others use: nobody else speaks with this Spark or reads what it spills."""
    folder = tempfile.mkdtemp(prefix="tidegate-spark-")  # 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.local.dir": folder,
    }


def _escaped(text: object) -> str:
    """A key or value as Java's properties files have it."""
    plain = str(text).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return re.sub(r"([=:#! ])", r"\\\1", plain)


def _provide_java() -> None:
    """See that the JVM can start, before Spark fails with its own words."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or _jvm_runs():
        return
    java = choose_java(os.environ)
    if java.complaint is not None:
        raise TidegateError(f"Spark cannot start: {java.complaint}", java.fix)
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)


def _jvm_runs() -> bool:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_gateway", None) is not None


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")


def _reason(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """The JVM inherits our standard error; give it a file instead, so that ours stays clean."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)


def require_frame(value: object) -> DataFrame:
    """The value, if it is a DataFrame of Spark, classic or Connect."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind.startswith("pyspark.pandas."):
        hint = "turn it into one with df.to_spark()"
    elif kind.startswith(("pandas.", "polars.", "pyarrow.")):
        hint = "turn it into one with spark.createDataFrame(…)"
    else:
        hint = "give the DataFrame itself, such as spark.table(…) or what df.select(…) returns"
    raise UsageError(f"publish takes a Spark DataFrame, not {kind.removeprefix('builtins.')}", hint)


def refuse_unreadable(frame: DataFrame) -> None:
    """A stream never ends, so it has no single load; a stopped session computes nothing."""
    if is_stopped(frame.sparkSession):
        raise UsageError(
            "the DataFrame belongs to a Spark session that was stopped",
            "make it again in a session that runs",
        )
    if frame.isStreaming:
        raise UsageError(
            "publish takes a DataFrame that ends, not a stream",
            "publish each of its micro-batches: writeStream.foreachBatch(…), with the batch's "
            "number in update_id",
        )

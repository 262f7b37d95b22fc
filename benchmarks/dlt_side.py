"""dlt beside us: a process of its own that loads when told to."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from benchmarks.peers import Peer, url

PACKAGES = (
    "dlt[postgres,parquet]>=1.31,<2",
    "connectorx>=0.4,<1",
    "adbc-driver-postgresql>=1.11,<2",
    "adbc-driver-manager>=1.11,<2",
    "sqlalchemy>=2,<3",
    "psycopg[binary]>=3.2,<4",
)
_SCRIPT = Path(__file__).with_name("dlt_pipeline.py")


class DltSide:
    """Loads the table into a schema of its own, first whole, then what changed."""

    def __init__(self, source: str, target: str) -> None:
        self._peer = Peer("dlt", PACKAGES, _SCRIPT, [url(source), url(target), "dlt_side"])
        self.settings = self._peer.settings

    def run(self) -> float:
        """Load once; the seconds that the load itself took."""
        return float(self._peer.ask("load")["seconds"])

    def __enter__(self) -> DltSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._peer.close()

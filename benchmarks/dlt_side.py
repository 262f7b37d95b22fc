"""dlt beside us: an environment of its own, made once, and a process that loads when told to."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

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
        self._process = subprocess.Popen(
            [_python(), _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # Addresses hold passwords, which have no place in the list of processes.
        self._write(json.dumps([_url(source), _url(target), "dlt_side"]))
        self.settings = self._read()

    def run(self) -> float:
        """Load once; the seconds that the load itself took."""
        self._write("load")
        return float(str(self._read()["seconds"]))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"dlt ended with {self._process.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> DltSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()


def _python() -> Path:
    """The Python of dlt's environment, which is made when it is not there yet."""
    folder = Path(sys.prefix) / "peers" / "dlt"
    python = folder / "bin" / "python"
    stamp = folder / "packages"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        print("  installing dlt into an environment of its own", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return python


def _url(conninfo: str) -> str:
    parts = conninfo_to_dict(conninfo)
    user, password = (quote(str(parts.get(name) or ""), safe="") for name in ("user", "password"))
    return f"postgresql://{user}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"

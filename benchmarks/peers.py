"""Other tools beside us: an environment of their own, made once, and processes that take orders."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Peer:
    """A process of another tool: a line of JSON asks for something, a line of JSON answers.

    Without packages it is a tool that is installed here.
    """

    def __init__(self, name: str, packages: tuple[str, ...], script: Path, first: object) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [environment(name, packages) if packages else sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Addresses hold passwords, which have no place in the list of processes.
        self.settings: Any = self.ask(first)

    def ask(self, order: object) -> Any:
        """Send an order and wait for its answer."""
        self.tell(order)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        return json.loads(line)

    def tell(self, order: object) -> None:
        """Send an order that has no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """The Python of a tool's environment, which is made when it is not there yet."""
    folder = Path(sys.prefix) / "peers" / name
    python = folder / "bin" / "python"
    stamp = folder / "packages"
    if not stamp.exists() or stamp.read_text() != "\n".join(packages):
        print(f"  installing {name} into an environment of its own", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        stamp.write_text("\n".join(packages))
    return python


def url(conninfo: str) -> str:
    """An address as a URL, with its password."""
    parts = conninfo_to_dict(conninfo)
    user, password = (quote(str(parts.get(name) or ""), safe="") for name in ("user", "password"))
    return f"postgresql://{user}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"

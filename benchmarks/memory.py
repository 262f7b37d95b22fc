"""Peak memory of a process and everything below it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psutil


def peak_of(command: list[str], folder: Path) -> int:
    """Run a command and return the highest sum of resident bytes of its process tree."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    done = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        root = psutil.Process(process.pid)
        while not done.wait(0.1):
            peak = max(peak, _tree_bytes(root))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    done.set()
    watcher.join()
    if code != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {code}")
    return peak


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            # Workers are forked, so shared pages are counted once through the unique set size.
            total += process.memory_full_info().uss
        except psutil.Error:
            continue
    return total


def run_command(name: str) -> list[str]:
    return [sys.executable, "-m", "tidegate.cli.main", "run", name]

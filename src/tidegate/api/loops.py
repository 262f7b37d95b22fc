"""What the service does by itself: refresh the table cache, follow policy, sweep, tell people."""

from __future__ import annotations

from tidegate.control.workers import Worker
from tidegate.project import Project


class Loops:
    """Threads beside the service; any number of processes may have them."""

    def __init__(self, project: Project) -> None:
        identity = Worker.of_this_process(project.name, "tidegate serve")
        self._sweeping = project.sweep_loop(identity.worker_id)
        self._refreshing = project.refresh_loop()
        self._notifying = project.notify_loop()

    def start(self) -> None:
        self._sweeping.start()
        self._refreshing.start()
        self._notifying.start()

    def stop(self) -> None:
        self._sweeping.stop()
        self._refreshing.stop()
        self._notifying.stop()

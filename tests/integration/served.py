"""The service on a real socket, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tidegate.admin.tokens import ApiTokens
from tidegate.core.identity import Scope
from tidegate.project import Project
from tidegate.service.server import Server, address, listen


def plain_client(url: str, **options: Any) -> httpx.Client:
    """A client without TLS: it does not read the certificates of the machine, which takes long."""
    return httpx.Client(base_url=url, timeout=30, verify=False, **options)


@contextmanager
def serving(project: Project) -> Iterator[httpx.Client]:
    """A client of the service, which ends with the block."""
    project.context.control_id()
    listening = listen("127.0.0.1", 0)
    server, ready = Server(project, listening), threading.Event()
    thread = threading.Thread(target=server.run_here, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        # No limits: beyond them the pool closes connections that it has just given to a thread.
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        with plain_client(address(listening), limits=unlimited) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def make_token(
    project: Project, name: str, scope: Scope, expires_seconds: float | None = None
) -> dict[str, str]:
    """A token, as the header that shows it."""
    context = project.context
    context.control_id()
    with context.plane.connect() as control:
        _, text = ApiTokens(context.plane).create(
            control, project.name, name, scope, actor="test", expires_seconds=expires_seconds
        )
    return {"Authorization": f"Bearer {text}"}


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """The problem that an answer tells of, which must be this one."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"/problems/{name}"), answer.text
    assert found["status"] == status
    path = answer.request.url.raw_path.decode().partition("?")[0]
    # Long texts of a problem are cut.
    assert path.startswith(found["instance"].removesuffix("…"))
    assert found["title"]
    assert found["detail"]
    return found

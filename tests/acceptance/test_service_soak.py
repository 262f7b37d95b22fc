"""The service beside clients that misbehave, without its database for a while, and killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from chaos_seeds import chosen
from integration.conftest import MakePlace, Place
from integration.raw_events import event_place
from integration.served import make_token
from integration.test_api_process import address_of, served
from tidegate.core.identity import Scope
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.service.connections import REQUEST_SECONDS, WRITE_SECONDS
from tried import count

HONEST, PATIENT = 50, 250
ALONE_SECONDS, TOGETHER_SECONDS = 20.0, 120.0
KILLS, SENDERS, BATCH = 20, 4, 100
SLACK_SECONDS = 5.0
DEADLINES = {
    "silent": REQUEST_SECONDS,
    "slow": REQUEST_SECONDS,
    "never_reading": REQUEST_SECONDS + WRITE_SECONDS,
    "endless_trailers": REQUEST_SECONDS,
    "guessing": REQUEST_SECONDS,
}


@pytest.fixture
def place(doomed: EmbeddedServer, tmp_path: Path) -> Place:
    """A project with events on a server that can be restarted."""

    def make(hint: str = "db", *, control: bool = False) -> str:
        doomed.ensure_database(hint)
        return doomed.conninfo(hint)

    return event_place(MakePlace(make, tmp_path / "projects"))


@dataclass
class Answers:
    """What honest clients were answered, and when."""

    port: int
    token: dict[str, str]
    times: list[tuple[float, float, int]] = field(default_factory=list)
    """(when it was asked, how many seconds it took, status)"""
    accepted: list[str] = field(default_factory=list)
    stopped: bool = False

    async def honest(self, number: int) -> None:
        """Reads, and sends an event every fifth time."""
        turn = number
        while not self.stopped:
            turn += 1
            event = str(uuid4()) if turn % 5 == 0 else None
            began = time.monotonic()
            status = await self.ask("127.0.0.1", event)
            self.times.append((began, time.monotonic() - began, status))
            if event is not None and status == 202:
                self.accepted.append(event)
            await asyncio.sleep(0.5)

    async def patient(self, number: int) -> None:
        """Keeps a connection and asks now and then."""
        source = f"127.0.2.{1 + number // 50}"
        while not self.stopped:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(source, 0)
            )
            try:
                while not self.stopped:
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b" 200 " in head, head
                    await reader.readexactly(15)
                    await asyncio.sleep(4)
            except asyncio.IncompleteReadError:
                continue
            finally:
                writer.close()

    async def ask(self, source: str, event: str | None) -> int:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(source, 0)
        )
        try:
            body = b"" if event is None else json.dumps({"event_id": event}).encode()
            head = "GET /jobs" if event is None else "POST /events"
            head += " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            head += f"Authorization: {self.token['Authorization']}\r\n"
            if body:
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"\r\n" + body)
            answer = await reader.read()
            return int(answer.split(b" ", 2)[1])
        finally:
            writer.close()

    async def run(self, seconds: float) -> None:
        self.stopped = False
        clients = [asyncio.create_task(self.honest(one)) for one in range(HONEST)]
        clients += [asyncio.create_task(self.patient(one)) for one in range(PATIENT)]
        await asyncio.sleep(seconds)
        self.stopped = True
        await asyncio.gather(*clients)


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


@contextmanager
def trouble(
    place: Place, doomed: EmbeddedServer, windows: list[tuple[float, float]]
) -> Iterator[None]:
    """A table locked for ten seconds, and the database restarted, beside everything else."""

    def make() -> None:
        time.sleep(30)
        began = time.monotonic()
        with place.control.connect() as blocker, blocker.transaction():
            blocker.execute("LOCK TABLE tidegate_control.jobs")
            time.sleep(10)
        windows.append((began, time.monotonic()))
        time.sleep(20)
        began = time.monotonic()
        doomed.stop("immediate")
        doomed.start()
        windows.append((began, time.monotonic()))

    thread = threading.Thread(target=make)
    thread.start()
    yield
    thread.join()


@pytest.mark.chaos
def test_half_of_all_clients_misbehave_and_the_others_hardly_notice(
    place: Place, doomed: EmbeddedServer
) -> None:
    with place.open() as project:
        token = make_token(project, "honest", Scope.SUBMIT)
    with served(place.folder) as (process, said):
        port = address_of(said["address"])[1]
        service = psutil.Process(process.pid)
        alone = Answers(port, token)
        asyncio.run(alone.run(ALONE_SECONDS))
        assert {status for _, _, status in alone.times} == {200, 202}
        base = p99([took for _, took, _ in alone.times])
        memory = [service.memory_info().rss]
        together, windows = Answers(port, token), list[tuple[float, float]]()
        script = Path(__file__).with_name("misbehaving.py")
        bad = subprocess.Popen(
            [sys.executable, str(script), str(port), str(TOGETHER_SECONDS)], stdout=subprocess.PIPE
        )
        began = time.monotonic()
        with trouble(place, doomed, windows):
            asyncio.run(together.run(TOGETHER_SECONDS))
        out, _ = bad.communicate(timeout=90)
        memory.append(service.memory_info().rss)
        told = json.loads(out)
        deadline = time.monotonic() + REQUEST_SECONDS + SLACK_SECONDS
        while left := [
            one
            for one in service.net_connections("tcp")
            if one.laddr.port == port and one.status != psutil.CONN_LISTEN
        ]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    quiet, loud = list[float](), list[float]()
    for asked, took, status in together.times:
        # What was asked shortly before waits as well.
        if any(one - 1 <= asked <= other + 1 for one, other in windows):
            assert status in (200, 202, 503), status
            loud.append(took)
        else:
            assert status in (200, 202), (status, asked - began)
            quiet.append(took)
    grown = (memory[1] - memory[0]) / 2**20
    print(
        f"p99 alone {base * 1000:.0f} ms, beside them {p99(quiet) * 1000:.0f} ms, longest in"
        f" trouble {max(loud):.1f} s; {len(together.times)} requests; memory {grown:+.1f} MB;"
        f" {told}"
    )
    assert p99(quiet) <= 3 * base
    assert max(loud) < 12
    assert grown < 30
    for way, seconds in DEADLINES.items():
        assert told["ended"][way] >= 50
        assert told["longest"][way] < seconds + SLACK_SECONDS, told
    kept = {str(row[0]) for row in place.target.execute("SELECT id FROM raw_events")}
    assert set(together.accepted) | set(alone.accepted) <= kept


@pytest.mark.chaos
def test_no_event_that_was_accepted_is_lost_when_the_service_is_killed(place: Place) -> None:
    accepted: list[str] = []
    chance = random.Random(chosen(17))

    def send(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            while True:
                ids = [str(uuid4()) for _ in range(BATCH)]
                body = json.dumps([{"event_id": one, "n": 1} for one in ids])
                connection.request("POST", "/events", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 202
                accepted.extend(ids)
        except (OSError, http.client.HTTPException):
            pass  # it was killed; what was not answered may be kept or not

    seconds = 0.0
    for _ in range(KILLS):
        with served(place.folder) as (process, said):
            port = address_of(said["address"])[1]
            senders = [threading.Thread(target=send, args=(port,)) for _ in range(SENDERS)]
            began, before = time.monotonic(), len(accepted)
            for one in senders:
                one.start()
            while len(accepted) == before:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 1.5))
            process.kill()
            count(kills=1)
            seconds += time.monotonic() - began
            for one in senders:
                one.join()
    kept = {str(row[0]) for row in place.target.execute("SELECT id FROM raw_events")}
    lost = set(accepted) - kept
    count(rows_compared=len(accepted), differences=len(lost))
    print(f"{len(accepted)} events accepted in {seconds:.1f} s, {len(kept)} kept, {len(lost)} lost")
    assert not lost
    assert len(accepted) > KILLS * BATCH

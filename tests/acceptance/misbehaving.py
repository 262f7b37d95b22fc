"""Clients of the service that misbehave for some time, as a process of their own.

`python misbehaving.py PORT SECONDS` prints, for each way of misbehaving, how many connections were
ended by the service and how many seconds the longest of them was kept.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count

EACH = 50
LONGEST_SECONDS = 40.0
HOST = b"Host: localhost\r\n"
_numbers = count()


class Wire:
    """One connection of a client."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.own, data)

    async def until_end(self, drip: bytes = b"") -> None:
        """Read until the service hangs up, and drip meanwhile."""
        while True:
            if drip:
                await self.send(drip)
            try:
                async with asyncio.timeout(1.0):
                    if not await self.loop.sock_recv(self.own, 65536):
                        return
            except TimeoutError:
                continue

    async def until_reset(self) -> None:
        """Wait until the service hangs up, and read nothing."""
        # The first byte is the state; 1 is ESTABLISHED.
        while self.own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1:
            await asyncio.sleep(0.2)


async def silent(wire: Wire) -> None:
    await wire.until_end()


async def slow(wire: Wire) -> None:
    await wire.send(b"GET /jobs HTTP/1.1\r\n")
    await wire.until_end(b"a")


async def never_reading(wire: Wire) -> None:
    wire.own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await wire.send((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 50)
    await wire.until_reset()


async def endless_trailers(wire: Wire) -> None:
    await wire.send(
        b"POST /events HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    await wire.until_end(b"a: b\r\n" * 100)


async def guessing(wire: Wire) -> None:
    token = b"Authorization: Bearer tg_%d\r\n" % next(_numbers)
    await wire.send(b"GET /jobs HTTP/1.1\r\n" + HOST + token + b"\r\n")
    await wire.until_end()


WAYS: list[Callable[[Wire], Awaitable[None]]] = [
    silent,
    slow,
    never_reading,
    endless_trailers,
    guessing,
]


async def main(port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    ended = {way.__name__: 0 for way in WAYS}
    longest = {way.__name__: 0.0 for way in WAYS}

    async def client(place: int, way: Callable[[Wire], Awaitable[None]]) -> None:
        while time.monotonic() < until:
            own = socket.socket()
            own.setblocking(False)
            own.bind((f"127.0.1.{place}", 0))
            began = time.monotonic()
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
                    began = time.monotonic()
                    await way(Wire(own))
            except (OSError, TimeoutError):
                pass  # a reset ends it as well; what takes too long is seen by its time
            finally:
                own.close()
            ended[way.__name__] += 1
            longest[way.__name__] = max(longest[way.__name__], time.monotonic() - began)
            await asyncio.sleep(0.5)

    await asyncio.gather(
        *(client(place, way) for place, way in enumerate(WAYS, 1) for _ in range(EACH))
    )
    print(json.dumps({"ended": ended, "longest": longest}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))

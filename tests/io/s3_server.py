"""An S3 server on loopback (moto), and a proxy before it that is slow, or refuses or drops requests."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Proxy:
    """Passes requests on to a server.

    Attributes:
        target: Port of the server.
        delay: Seconds before every answer.
        fails_every: Every n-th request fails; 0 for none.
        drops: Failing means that the connection is closed, and not the answer 503.
        requests: First lines of all requests.
        failed: Number of requests that failed.
    """

    target: int
    delay: float = 0.0
    fails_every: int = 0
    drops: bool = False
    requests: list[str] = field(default_factory=list)
    failed: int = 0
    port: int = 0
    _answers: dict[bytes, bytes] = field(default_factory=dict)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                body = await reader.readexactly(_length(head))
                first = head.split(b"\r\n", 1)[0].decode()
                self.requests.append(first)
                await asyncio.sleep(self.delay)
                if self.fails_every and len(self.requests) % self.fails_every == 0:
                    self.failed += 1
                    if self.drops:
                        break
                    writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
                else:
                    writer.write(await self._answer(head, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, body: bytes) -> bytes:
        """Return the server's answer; those to repeated reads are kept, because the server itself is slow."""
        lines = head.split(b"\r\n")
        kept = [line for line in lines[1:] if line.lower().startswith(b"range:")]
        key = b"\n".join([lines[0], *kept])
        if head.startswith((b"GET", b"HEAD")) and key in self._answers:
            return self._answers[key]
        if not head.startswith((b"GET", b"HEAD")):
            self._answers.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        lines = [line for line in lines if not line.lower().startswith(b"connection:")]
        writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + body)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        top, _, content = answer.partition(b"\r\n\r\n")
        kept = [line for line in top.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        answer = b"\r\n".join(kept) + b"\r\n\r\n" + content
        if answer.startswith(b"HTTP/1.1 2"):
            self._answers[key] = answer
        return answer


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


@contextmanager
def proxy_before(port: int, **options: Any) -> Iterator[Proxy]:
    """Run a proxy in a thread."""
    proxy, loop = Proxy(port, **options), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.handle, "127.0.0.1", 0))
    proxy.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


if __name__ == "__main__":  # in a process of its own: the port of the server, the delay
    with proxy_before(int(sys.argv[1])) as own:
        print(own.port, flush=True)
        for line in sys.stdin:
            own.delay = float(line)
            print("set", flush=True)

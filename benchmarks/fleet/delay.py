"""A TCP proxy that holds bytes back, as a network with a longer way does: netem is not in every kernel.

python -m benchmarks.fleet.delay MS HOST:PORT…   prints the ports on 127.0.0.1, in that order, as one JSON list, and serves
until its stdin ends. Half of MS goes by in each direction, so a round trip takes MS longer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

CHUNK = 64 * 1024


async def _held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Pass bytes on, each a fixed time after it came: what comes meanwhile does not wait for what is held."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def read() -> None:
        data = b"-"
        while data:
            data = await reader.read(CHUNK)
            queue.put_nowait((loop.time() + seconds, data))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other end is gone
    finally:
        reading.cancel()
        writer.close()


async def _serve(address: str, port: int, seconds: float) -> int:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(address, port)
        for end in (writer, back):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(_held(reader, back, seconds), _held(there, writer, seconds))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def main(ms: float, targets: list[str]) -> None:
    """Serve until stdin ends: who started it is gone. ms: what a round trip takes longer; targets: HOST:PORT each."""
    ports = [await _serve(host, int(port), ms / 2000) for host, _, port in (t.rpartition(":") for t in targets)]
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), sys.argv[2:]))

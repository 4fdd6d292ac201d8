"""A TCP proxy that delays a server's answers and counts their bytes: `PORT SECONDS COUNTER_FILE`.

Prints its own port. It adds latency only; the server limits the bandwidth.
"""

import asyncio
import os
import sys


async def main(port: int, delay: float, counter: str) -> None:
    total, file = 0, os.open(counter, os.O_RDWR | os.O_CREAT)
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal total
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def ask() -> None:
            while data := await reader.read(1 << 16):
                back.write(data)
                await back.drain()
            back.close()

        asking = loop.create_task(ask())
        try:
            while data := await there.read(1 << 18):
                total += len(data)
                os.pwrite(file, b"%020d" % total, 0)
                loop.call_later(delay, writer.write, data)
            await asyncio.sleep(2 * delay)
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent process ends


asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))

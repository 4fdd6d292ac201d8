"""A local S3 server behind a slow line: `bucket_server.py FOLDER SECONDS BYTES_PER_SECOND [PORT]`
prints its port.

It answers the requests of readers: GET with ranges and etags, HEAD, and ListObjectsV2. The bucket
`data` is the folder. Signatures are not checked (`tests/storage` reads from moto, which is a whole
S3). Each answer is SECONDS late, the first of a connection twice as late, as its handshake would
be. All answers share one line. `GET /-/counts` returns the counts since the last such request.
"""

import asyncio
import email.utils
import json
import os
import sys
import time
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CHUNK = 1 << 16


class Server:
    """Files of a folder, one line and its counters."""

    def __init__(self, folder: str, delay: float, rate: float) -> None:
        self.folder = folder
        self.delay = delay
        self.rate = rate
        self.free_at = 0.0  # when the line has sent everything so far
        self.reset()

    def reset(self) -> None:
        self.counts = dict.fromkeys(
            ("requests", "body_bytes", "all_bytes", "connections", "lists", "unchanged"), 0
        )
        self.paths: dict[str, int] = {}

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send on the shared line."""
        self.counts["all_bytes"] += len(data)
        now = time.monotonic()
        self.free_at = max(self.free_at, now) + len(data) / self.rate
        if self.free_at - now > 0.001:
            await asyncio.sleep(self.free_at - now)
        writer.write(data)
        await writer.drain()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.counts["connections"] += 1
        wait = 2 * self.delay
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {
                    k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)
                }
                if target == "/-/counts":
                    text = json.dumps(self.counts | {"paths": self.paths}).encode()
                    self.reset()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
                    )
                    continue
                await asyncio.sleep(wait)
                wait = self.delay
                status, extra, file, first, size = self.answer(target, headers)
                lines = [
                    f"HTTP/1.1 {status}",
                    f"Content-Length: {size}",
                    f"Date: {email.utils.formatdate(usegmt=True)}",
                ]
                self.counts["requests"] += 1
                await self.send(writer, "\r\n".join([*lines, *extra, "", ""]).encode())
                if method == "HEAD":
                    continue
                self.counts["body_bytes"] += size
                for at in range(first, first + size, CHUNK):
                    count = min(CHUNK, first + size - at)
                    await self.send(
                        writer,
                        file[at : at + count]
                        if isinstance(file, bytes)
                        else os.pread(file, count, at),
                    )
                if isinstance(file, int):
                    os.close(file)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(
        self, target: str, headers: dict[str, str]
    ) -> tuple[str, list[str], bytes | int, int, int]:
        """Status, headers, content or its file, first byte, number of bytes."""
        split = urlsplit(target)
        query = parse_qs(split.query)
        key = unquote(split.path).removeprefix("/data").lstrip("/")
        if "list-type" in query:
            self.counts["lists"] += 1
            text = self.listing(query.get("prefix", [""])[0], "delimiter" in query)
            return "200 OK", ["Content-Type: application/xml"], text, 0, len(text)
        path = os.path.join(self.folder, key)
        if not key:  # HEAD of the bucket
            return "200 OK", ["x-amz-bucket-region: us-east-1"], b"", 0, 0
        if not os.path.isfile(path):
            text = b"<Error><Code>NoSuchKey</Code></Error>"
            return "404 Not Found", ["Content-Type: application/xml"], text, 0, len(text)
        stat = os.stat(path)
        tag = f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
        extra = [
            f"ETag: {tag}",
            f"Last-Modified: {email.utils.formatdate(stat.st_mtime, usegmt=True)}",
        ]
        if headers.get("if-none-match") == tag:
            self.counts["unchanged"] += 1
            return "304 Not Modified", extra, b"", 0, 0
        first = 0
        end = stat.st_size
        status = "200 OK"
        if (span := headers.get("range", "")).startswith("bytes="):
            low, _, high = span.removeprefix("bytes=").partition("-")
            first = int(low) if low else max(0, end - int(high))
            end = min(end, int(high) + 1) if low and high else end
            status = "206 Partial Content"
            extra = [*extra, f"Content-Range: bytes {first}-{end - 1}/{stat.st_size}"]
        self.paths[key] = self.paths.get(key, 0) + end - first
        return (
            status,
            [*extra, "Accept-Ranges: bytes"],
            os.open(path, os.O_RDONLY),
            first,
            end - first,
        )

    def listing(self, prefix: str, shallow: bool) -> bytes:
        """ListBucketResult of all keys with a prefix."""
        keys = []
        folders = set()
        for folder, _, names in os.walk(os.path.join(self.folder, os.path.dirname(prefix))):
            for name in names:
                key = os.path.relpath(os.path.join(folder, name), self.folder)
                if key.startswith(prefix):
                    rest = key[len(prefix) :]
                    if shallow and "/" in rest:
                        folders.add(prefix + rest.split("/")[0] + "/")
                    else:
                        keys.append(key)
        entries = [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(folders)
        ]
        for key in sorted(keys):
            stat = os.stat(os.path.join(self.folder, key))
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
            tag = f"&quot;{stat.st_size:x}-{stat.st_mtime_ns:x}&quot;"
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                f"<ETag>{tag}</ETag><Size>{stat.st_size}</Size>"
                f"<StorageClass>STANDARD</StorageClass></Contents>"
            )
        about = (
            f"<Name>data</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        )
        count = f"<KeyCount>{len(entries)}</KeyCount><MaxKeys>1000000</MaxKeys>"
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        listed = "".join(entries)
        return f"<ListBucketResult {space}>{about}{count}{listed}</ListBucketResult>".encode()


async def main(folder: str, delay: str, rate: str, port: str = "0") -> None:
    server = await asyncio.start_server(
        Server(folder, float(delay), float(rate)).serve, "127.0.0.1", int(port)
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    # until the parent process ends
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""http_load.py ADDRESS PORT PATH FILE CONNECTIONS WORKERS STOP: fetches PATH over kept connections, again and again, and
compares every byte with FILE. Says `running` when there are CONNECTIONS and each of WORKERS processes (X-Worker) serves
one; tells which worker's connection is lost in the middle of an answer or between two, and makes another; goes on until
the file STOP is there. Then a JSON object: how many transfers came whole, what was lost, and what else went wrong."""
import asyncio
import collections
import json
import os
import sys

address, port, path, file, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[7]
connections, workers = int(sys.argv[5]), int(sys.argv[6])
expected = open(file, "rb").read()
request = f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()
whole, lost, failed, served_by = 0, collections.Counter(), [], {}


class Closed(Exception):
    """The server ended a kept connection between two answers, as it may."""


def lose(what):
    lost[what] += 1
    print(f"lost {what}", flush=True)


async def fetch(reader, writer, index):
    """One transfer; returns whether the connection stays."""
    global whole
    fresh = index not in served_by
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        partial = getattr(error, "partial", b"")
        if fresh or partial:
            raise ConnectionResetError(f"no answer: {error!r}")
        raise Closed
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK", lines[0]
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    served_by[index] = int(fields["x-worker"])
    body = await reader.readexactly(int(fields["content-length"]))
    assert body == expected, "the body differs"
    whole += 1
    return fields.get("connection") != "close"


async def keep_fetching(index):
    while not os.path.exists(stop):
        served_by.pop(index, None)
        try:
            reader, writer = await asyncio.open_connection(address, port, limit=1 << 20)
        except OSError as error:
            failed.append(f"connect: {error!r}")
            continue
        try:
            while await fetch(reader, writer, index) and not os.path.exists(stop):
                pass
        except Closed:
            lose(f"{served_by[index]} between answers")
        except (OSError, asyncio.IncompleteReadError):
            lose(f"{served_by.get(index)} cut")
        except AssertionError as error:
            failed.append(str(error))
        writer.close()


async def main():
    tasks = []
    while not os.path.exists(stop):
        if len(tasks) < connections or (len(set(served_by.values())) < workers and len(tasks) < 200):
            tasks.append(asyncio.create_task(keep_fetching(len(tasks))))
        elif len(served_by) == len(tasks):
            print("running", flush=True)
            break
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    print(json.dumps({"whole": whole, "lost": lost, "failed": failed}))


asyncio.run(main())

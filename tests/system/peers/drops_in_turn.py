"""drops_in_turn.py ADDRESS PORT FOLDER LISTENS CHILD...: root's master makes one child after another. If LISTENS is 1, it
listens once the first is there, whose turn comes before a port opens. Each does what its argument says; the next one is made when it has. Behind a `|`
stands what it does when the file FOLDER/goN appears, N its number from 1, or FOLDER/go; without that, and at its end, it
waits. Its names: drop(USER), serve(LISTENER) echoes, listener, os, resource and select."""
import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time

address, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
listener = socket.socket() if sys.argv[4] == "1" else None
names = {"os": os, "resource": resource, "select": select}


def drop(user):
    os.setgid(user)
    os.setuid(user)


def serve(own=None):
    async def echo(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def go_on():
        server = await asyncio.start_server(echo, sock=own or socket.create_server((address, port)), backlog=64)
        await server.serve_forever()

    asyncio.run(go_on())


def work(number, what, turn, ready):
    os.read(turn, 1)
    before, _, after = what.partition("|")
    names.update(drop=drop, serve=serve, listener=listener)
    exec(before, names)
    os.write(ready, b"r")
    while not any(os.path.exists(os.path.join(folder, name)) for name in ("go", f"go{number}")):
        time.sleep(0.005)
    exec(after, names)
    while True:
        signal.pause()


for number, what in enumerate(sys.argv[5:], 1):
    (hears, ready), (turn, tells) = os.pipe(), os.pipe()
    if os.fork() == 0:
        work(number, what, turn, ready)
    os.close(ready)
    if number == 1 and listener:
        listener.bind((address, port))
        listener.listen(64)
    os.write(tells, b"t")
    print("ready" if os.read(hears, 1) else "ended", number, flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()

"""drops_in_turn.py ADDRESS PORT FOLDER LISTENS CHILD...: root's master makes one child after another. If LISTENS is 1, it
listens once the first is there, whose turn comes before a port opens. Each does what its argument says; the next one is made when it has. Behind a `|` stands what it does when the file
FOLDER/goN appears, N its number from 1, or FOLDER/go; without that, and at its end, it waits."""
import contextlib
import os
import resource
import signal
import socket
import sys
import time

address, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
listener = socket.socket() if sys.argv[4] == "1" else None
names = {"os": os, "resource": resource, "time": time}


def drop(user):
    os.setgid(user)
    os.setuid(user)


def serve(own=None):
    with own or socket.create_server((address, port), backlog=16) as serving:
        while True:
            connection, _ = serving.accept()
            with connection, contextlib.suppress(ConnectionError):
                while data := connection.recv(65536):
                    connection.sendall(data)


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
        listener.listen(16)
    os.write(tells, b"t")
    print("ready" if os.read(hears, 1) else "ended", number, flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()

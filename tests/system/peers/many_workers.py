"""many_workers.py ADDRESS PORT WORKERS: processes of one listener, all of them alike, each serving many connections with
epoll. A connection is told its worker's process ID in a line; for each line `SEED SIZE` it gets that many bytes. Whoever is
sent SIGUSR1 forks another worker, so that any of them may die."""
import os
import random
import selectors
import signal
import socket
import sys

address, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listener = socket.create_server((address, port), backlog=256)
listener.setblocking(False)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class Connection:
    def __init__(self, sock):
        self.sock, self.asked, self.owed = sock, b"", f"{os.getpid()}\n".encode()

    def on_ready(self, mask):
        """Returns the events to wait for next; 0 at the end."""
        if mask & selectors.EVENT_READ:
            got = self.sock.recv(4096)
            if not got:
                return 0
            *lines, self.asked = (self.asked + got).split(b"\n")
            for line in lines:
                seed, size = map(int, line.split())
                self.owed += random.Random(seed).randbytes(size)
        if self.owed:
            try:
                self.owed = self.owed[self.sock.send(self.owed):]
            except BlockingIOError:
                pass
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.owed else 0)


def serve():
    """Serves until SIGUSR1; returns in the forked worker, with nothing of its parent's but the listener."""
    wake, poke = socket.socketpair()
    wake.setblocking(False)
    poke.setblocking(False)
    signal.set_wakeup_fd(poke.fileno())
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.write(1, f"worker {os.getpid()}\n".encode())  # in one piece: others write there, too
    with selectors.EpollSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        events.register(wake, selectors.EVENT_READ)
        connections = set()
        while True:
            for key, mask in events.select():
                if key.fileobj is wake:
                    if signal.SIGUSR1 in wake.recv(64) and os.fork() == 0:
                        for connection in connections:
                            connection.sock.close()
                        wake.close()
                        poke.close()
                        return
                elif key.fileobj is listener:
                    try:
                        connection = Connection(listener.accept()[0])
                    except BlockingIOError:
                        continue  # another worker was faster
                    connection.sock.setblocking(False)
                    connections.add(connection)
                    events.register(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
                else:
                    try:
                        wanted = key.data.on_ready(mask)
                    except ConnectionError:
                        wanted = 0
                    if wanted:
                        events.modify(key.fileobj, wanted, key.data)
                    else:
                        events.unregister(key.fileobj)
                        connections.discard(key.data)
                        key.fileobj.close()


for _ in range(workers - 1):
    if os.fork() == 0:
        break
while True:
    serve()

"""kept_connections.py ADDRESS PORT FIFO: three connections made before the server goes into the background; when FIFO is
opened, each echoes again, and so do three new ones."""
import random
import socket
import sys

address, port, fifo = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def echoes(sock, size):
    message = random.Random(size).randbytes(size)
    sock.sendall(message)
    got = b""
    while len(got) < size and (data := sock.recv(65536)):
        got += data
    assert got == message, f"{len(got)} of {size} bytes came back"


kept = [socket.create_connection((address, port), 20) for _ in range(3)]
for sock in kept:
    echoes(sock, 100)
print("kept", flush=True)
open(fifo).close()
for sock in kept + [socket.create_connection((address, port), 20) for _ in range(3)]:
    for size in (1, 1000, 60000):
        echoes(sock, size)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b"", "bytes behind the end"
print("all echoed")

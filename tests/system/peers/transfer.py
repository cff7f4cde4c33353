"""transfer.py serve|connect ADDRESS PORT BYTES: both ends of one connection; the server sends BYTES bytes, then the
client does. Each prints what it received: how many, their SHA-256, and whether that is what the other end sent."""
import hashlib
import random
import socket
import sys

BLOCK = random.Random(7).randbytes(1 << 20)


def pieces(count):
    """The stream: each block begins with its number."""
    for i in range((count + len(BLOCK) - 1) // len(BLOCK)):
        yield (i.to_bytes(8, "big") + BLOCK[8:])[:count - i * len(BLOCK)]


def send(s, count):
    for piece in pieces(count):
        s.sendall(piece)


def receive(s, count):
    digest, size, room = hashlib.sha256(), 0, bytearray(1 << 18)
    while size < count and (got := s.recv_into(room, min(len(room), count - size))):
        digest.update(memoryview(room)[:got])
        size += got
    expected = hashlib.sha256()
    for piece in pieces(count):
        expected.update(piece)
    print(size, digest.hexdigest(), "same" if digest.digest() == expected.digest() else "CHANGED", flush=True)


role, address, port, total = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role == "serve":
    with socket.create_server((address, port)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
        send(connection, total)
        receive(connection, total)
        connection.sendall(b"!")
else:
    connection = socket.create_connection((address, port), timeout=120)
    receive(connection, total)
    send(connection, total)
    if connection.recv(1) != b"!":
        sys.exit("the server ended before it had everything")

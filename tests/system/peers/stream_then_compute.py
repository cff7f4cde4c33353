"""Streams of little writes whose writer then makes no call at all: all of it arrives before it makes one.
server|client ADDRESS PORT FOLDER ROUNDS"""
import hashlib
import os
import random
import socket
import sys
import time

role = sys.argv[1]
PATIENCE = 20


def told(folder, number):
    return os.path.join(folder, f"arrived{number}")


def read_all(sock, count):
    digest = hashlib.sha256()
    while count:
        got = sock.recv(min(count, random.choice((1000, 4096, 65536))))
        assert got, f"ended with {count} bytes to come"
        digest.update(got)
        count -= len(got)
    return digest.hexdigest()


def plan(number):
    """Of one round: the bytes, and the pieces that they are written in."""
    rng = random.Random(number)
    data = rng.randbytes(rng.randrange(600_000, 4_000_000))
    sizes, at = rng.choice(((4096, 4096), (100, 30_000), (5000, 5000), (12_000, 17_000))), 0
    while at < len(data):
        size = rng.randint(*sizes)
        yield data[at:at + size]
        at += size


if role == "server":
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
    print("ready", flush=True)
    sock, _ = listener.accept()
    for number in range(int(sys.argv[5])):
        pieces = list(plan(number))
        want = hashlib.sha256(b"".join(pieces)).hexdigest()
        assert read_all(sock, sum(map(len, pieces))) == want, f"round {number}: other bytes"
        open(told(sys.argv[4], number), "w").close()
    assert sock.recv(1) == b""
else:
    sock = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    print("connected", flush=True)
    for number in range(int(sys.argv[5])):
        for piece in list(plan(number)):
            sock.sendall(piece)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(told(sys.argv[4], number)):  # no call of a socket's
            if time.monotonic() > deadline:
                sys.exit(f"round {number}: what was written last has not arrived")
    print("all has arrived", flush=True)
    while not os.path.exists(os.path.join(sys.argv[4], "seen")):  # the test looks at the connection
        time.sleep(0.01)

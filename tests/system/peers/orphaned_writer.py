"""A writer forks in the middle of its stream and ends; its child writes the rest and ends, too.
server ADDRESS PORT | client ADDRESS PORT NUMBER"""
import os
import random
import socket
import sys

address, port = sys.argv[2], int(sys.argv[3])


def stream(number):
    rng = random.Random(number)
    return rng.randbytes(rng.randrange(600_000, 5_000_000)), rng.choice((1000, 4096, 16384))


if sys.argv[1] == "server":
    listener = socket.create_server((address, port))
    print("ready", flush=True)
    while True:
        sock, _ = listener.accept()
        sock.settimeout(20)
        number = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        want, got = stream(number)[0], bytearray()
        try:
            while piece := sock.recv(300_000):
                got += piece
            print(f"stream {number} {'whole' if got == want else f'{len(got)} of {len(want)}'}", flush=True)
        except OSError as error:
            print(f"stream {number} {len(got)} of {len(want)}: {error!r}", flush=True)
else:
    number = int(sys.argv[4])
    data, size = stream(number)
    sock = socket.create_connection((address, port))
    sock.sendall(number.to_bytes(4, "big"))
    half = len(data) // 2 // size * size
    for at in range(0, half, size):
        sock.sendall(data[at:at + size])
    if os.fork() == 0:
        for at in range(half, len(data), size):
            sock.sendall(data[at:at + size])
    os._exit(0)

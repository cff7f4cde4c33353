"""Clients that leave while they are written to. server ADDRESS PORT: what comes goes back, and for a Q come 400,000 bytes;
client ADDRESS PORT SECONDS FILE: one connection that stays and, once there is FILE, eight threads of short ones, each of
which checks some echoes, asks for that and closes, reading nothing of it, or resets. How many did what they should, and what
befell others."""
import collections
import os
import random
import signal
import socket
import struct
import sys
import threading
import time


def serve(connection):
    with connection:
        try:
            while came := connection.recv(65536):
                connection.sendall(came if came[:1] != b"Q" else b"y" * 400_000)
        except OSError:
            pass


def leave(rng, connection):
    if rng.random() < 0.7:
        connection.sendall(b"Q")
    if rng.random() < 0.2:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def check_echo(connection, size):
    sent = b"z" + os.urandom(size)
    connection.sendall(sent)
    if connection.recv(len(sent), socket.MSG_WAITALL) != sent:
        raise ValueError("other bytes")


def work(seed, end):
    rng, good = random.Random(seed), 0
    while time.monotonic() < end:
        try:
            with socket.create_connection(address, timeout=20) as connection:
                for _ in range(rng.randint(1, 3)):
                    check_echo(connection, rng.choice([4, 100, 5000]))
                leave(rng, connection)
            good += 1
        except (OSError, ValueError) as error:
            errors[repr(error)] += 1
    counts.append(good)


role, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if role == "server":
    listener = socket.create_server(address, backlog=128)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
stays, errors, counts = socket.create_connection(address), collections.Counter(), []
while not os.path.exists(sys.argv[5]):
    check_echo(stays, 100)
    time.sleep(0.005)
end = time.monotonic() + float(sys.argv[4])
threads = [threading.Thread(target=work, args=(seed, end)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check_echo(stays, 100)
print("connections", sum(counts), "errors", dict(errors), flush=True)
signal.pause()

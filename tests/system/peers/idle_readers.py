"""idle_readers.py server ADDRESS PORT | client ADDRESS PORT COUNT: connections that are used for a while; then the client
waits on each for an answer that does not come, and says what came instead."""
import collections
import socket
import sys
import threading
import time

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROUNDS = 40  # enough for a faster path to be found


def serve(c):
    for _ in range(ROUNDS):
        c.sendall(c.recv(100))
    c.recv(100)
    time.sleep(60)


if role == "server":
    listener = socket.create_server((address, port), backlog=64)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

connections = [socket.create_connection((address, port)) for _ in range(int(sys.argv[4]))]
for _ in range(ROUNDS):
    for c in connections:
        c.sendall(b"x" * 100)
        c.recv(100, socket.MSG_WAITALL)
    time.sleep(0.01)
for c in connections:
    c.sendall(b"x" * 100)
    c.settimeout(20)
time.sleep(0.5)  # the last bytes are acknowledged
print("waiting", flush=True)
ends = collections.Counter()
for c in connections:
    try:
        ends[f"{len(c.recv(100))} bytes"] += 1
    except OSError as error:
        ends[type(error).__name__] += 1
print(*(f"{end} {count}" for end, count in sorted(ends.items())), flush=True)

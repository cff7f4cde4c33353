"""asks_and_stays.py ADDRESS PORT: an echo of a request of some kilobytes, and then the connection stays."""
import signal
import socket
import sys

request = bytes(range(256)) * 32
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as connection:
    connection.sendall(request)
    answer = connection.makefile("rb").read(len(request))
    print("answered" if answer == request else f"wrong: {len(answer)}", flush=True)
    signal.pause()

"""drops_and_waits.py ADDRESS PORT: a child with a connection within the host gives root up, and both stay."""
import os
import signal
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
for _ in range(40):
    one.sendall(b"q" * 100)
    other.recv(100, socket.MSG_WAITALL)
if os.fork() == 0:
    os.setgid(65534)
    os.setuid(65534)
    one.sendall(b"after")
    print("dropped" if other.recv(5, socket.MSG_WAITALL) == b"after" else "lost", flush=True)
signal.pause()

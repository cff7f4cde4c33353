"""Connections that are kept until the process is killed. server ADDRESS PORT COUNT: takes so many, of which one is its own;
client ADDRESS PORT SOURCE: makes one."""
import signal
import socket
import sys

role, address, port, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if role == "server":
    listener = socket.create_server((address, port))
    kept = [socket.create_connection((address, port))]
    print("ready")
    kept += [listener.accept() for _ in range(int(last))]
    print("complete")
else:
    kept = socket.create_connection((address, port), 20, (last, 0))
signal.pause()

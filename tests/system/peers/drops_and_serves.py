"""drops_and_serves.py PORT: one process listens at all addresses as root, gives root up at once, and answers connections."""
import os
import socket
import sys

listener = socket.create_server(("", int(sys.argv[1])), backlog=16)
os.setgid(65534)
os.setuid(65534)
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)

"""unprivileged_child.py ADDRESS PORT: a root parent that accepts at a listener, so that the wire is its own, and a child that
shares it and is nobody's. Each tells whoever connects its number."""
import os
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))


def serve():
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()


print("ready", flush=True)
serve()
if os.fork() == 0:
    os.setuid(65534)
    print("child", flush=True)
while True:
    serve()

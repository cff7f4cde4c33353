"""forked_listener.py ADDRESS PORT: four processes accept at one listener; each tells whoever connects its number."""
import os
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
os.fork()
os.fork()
os.write(1, b"ready\n")
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()

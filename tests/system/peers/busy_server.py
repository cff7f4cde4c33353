"""busy_server.py ADDRESS PORT FILE: listens, computes without a socket call until FILE exists, then accepts one
connection and prints what came."""
import os
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
s, _ = listener.accept()  # the link stands, the port is open
s.close()
print("computing", flush=True)
while not os.path.exists(sys.argv[3]):
    sum(range(100000))
s, _ = listener.accept()
print("got", s.recv(100), flush=True)

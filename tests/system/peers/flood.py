"""flood.py ADDRESS PORT COUNT: echoes checked blocks; COUNT 0: for ever, saying "running" once the first came back."""
import random
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.create_connection((address, port), timeout=30)
rng, i = random.Random(1), 0
while count == 0 or i < count:
    block = rng.randbytes(rng.choice([1, 100, 5000, 60000]))
    s.sendall(block)
    got = b""
    while len(got) < len(block):
        piece = s.recv(65536)
        if not piece:
            sys.exit("the server closed the connection")
        got += piece
    if got != block:
        sys.exit("the echo differs")
    i += 1
    if i == 1:
        print("running", flush=True)
print("echoed", i)

"""last_words.py ADDRESS PORT BYTES HOW: writes and exits at once (HOW: exit, _exit, return). The bytes are seeded."""
import os
import random
import socket
import sys

s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
s.sendall(random.Random(3).randbytes(int(sys.argv[3])))
if sys.argv[4] == "_exit":
    os._exit(0)
if sys.argv[4] == "exit":
    sys.exit(0)

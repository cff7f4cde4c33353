"""sink.py ADDRESS PORT COUNT: accepts COUNT connections in turn, reads each to its end, prints size and SHA-256."""
import hashlib
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    s, _ = listener.accept()
    digest, size = hashlib.sha256(), 0
    while piece := s.recv(1 << 16):
        digest.update(piece)
        size += len(piece)
    print(size, digest.hexdigest(), flush=True)
    s.close()

"""Takes one connection. Sends each of the lines when a line has come, and reads to the end. Says how much has come, and the
digest.   answers_lines.py ADDRESS PORT LINE..."""
import hashlib
import socket
import sys

with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
    print("ready", flush=True)
    connection, _ = listener.accept()
with connection, connection.makefile("rb") as coming:
    got = b""
    for line in sys.argv[3:]:
        got += coming.readline()
        connection.sendall(line.encode() + b"\n")
    got += coming.read()
lines = got.splitlines()
print("got", len(got), hashlib.sha256(got).hexdigest()[:16], lines[:3], lines[-1:], flush=True)

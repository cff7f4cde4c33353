"""asks_slowly.py ADDRESS PORT: ten questions, each after the last answer; says what the answers are."""
import socket
import sys
import time

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
connection.settimeout(20)
for i in range(10):
    time.sleep(0.05)  # the server sleeps by now
    connection.sendall(b"%d" % i)
    got = b""
    while len(got) < 3 << 20:
        got += connection.recv(1 << 20)
    while not got.startswith((b"child%d" % i, b"helper%d" % i, b"grandchild%d" % i)) or len(got) < len(got.rstrip(b"\0")) + (3 << 20):
        got += connection.recv(1 << 20)
    print(got.rstrip(b"\0"), len(got), flush=True)
connection.shutdown(socket.SHUT_WR)
print("ended", connection.recv(10))

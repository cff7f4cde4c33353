"""ended_peer.py server ADDRESS PORT COUNT FIFO | client ADDRESS PORT WAY: what a writer meets whose peer's process has ended.
The server begins with each connection once somebody opens FIFO; how the client ends: WAY."""
import hashlib
import signal
import socket
import sys
import time

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "client":
    s = socket.create_connection((address, port))
    for _ in range(40):  # enough for a faster path to be found
        s.sendall(bytes(range(250)) * 20)
        s.recv(1)
    s.sendall(bytes(range(250)) * 20)
    ways = {"close": s.close, "shutdown": lambda: s.shutdown(socket.SHUT_WR), "exit": lambda: None}
    ways[sys.argv[4]]()
    sys.exit()


def send_until_error(c):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            c.sendall(b"x" * 1000)
        except OSError as error:
            return type(error).__name__
        time.sleep(0.01)
    return "no error"


listener = socket.create_server((address, port))
print("ready", flush=True)
for _ in range(int(sys.argv[4])):
    c, _ = listener.accept()
    c.settimeout(20)
    for _ in range(40):
        left = 5000  # a socket with a time-out does not wait for all of them
        while left > 0:
            left -= len(c.recv(left))
        c.sendall(b"!")
    open(sys.argv[5]).read()
    data = bytearray()
    while part := c.recv(65536):
        data += part
    print(len(data), hashlib.sha256(data).hexdigest()[:16], send_until_error(c), flush=True)
print("all", flush=True)
signal.pause()

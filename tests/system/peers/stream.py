"""stream.py server ADDRESS PORT: sends an endless pattern to whoever connects.
stream.py client ADDRESS PORT BYTES: checks so many of them (0: for ever), saying "running" once the first came."""
import socket
import sys
import threading

PATTERN = bytes(i % 251 for i in range(251 * 1024))


def serve(s):
    try:
        while True:
            s.sendall(PATTERN)
    except OSError:
        s.close()


role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    listener = socket.create_server((address, port))
    print("ready", flush=True)
    while True:
        s, _ = listener.accept()
        threading.Thread(target=serve, args=(s,), daemon=True).start()
s = socket.create_connection((address, port), timeout=60)
at, count = 0, int(sys.argv[4])
while count == 0 or at < count:
    piece = s.recv(100000)
    begin = at % 251
    if not piece or piece != PATTERN[begin:begin + len(piece)]:
        sys.exit(f"wrong at {at}")
    if at == 0:
        print("running", flush=True)
    at += len(piece)
print("checked", flush=True)

"""half_closed.py server|client ADDRESS PORT FIFO: once somebody opens FIFO, a family ends its side of a connection, and then
the process that accepted it ends; what the peer, which has not ended its own side, sees of that once its FIFO is opened."""
import os
import select
import signal
import socket
import sys
import time

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    listener = socket.create_server((address, port))
    print("ready", flush=True)
    c, _ = listener.accept()
    if os.fork() == 0:
        c.close()
        print("worker", flush=True)
        signal.pause()
    open(sys.argv[4]).read()
    c.close()
    sys.exit()
c = socket.create_connection((address, port))
print("connected", flush=True)
c.settimeout(20)
assert c.recv(1) == b""
print("ended", flush=True)
open(sys.argv[4]).read()
time.sleep(0.3)  # so long would a reset be on its way at the most
p = select.poll()
p.register(c, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
print([bits for _, bits in p.poll(0)], c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), c.send(b"x"), flush=True)

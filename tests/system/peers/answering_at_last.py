"""answering_at_last.py server ADDRESS PORT HOW | client ADDRESS PORT FIFO: a server that answers a question of which it has
not read all, closes, and ends at once (HOW: return, _exit). The client looks for the answer once FIFO is opened: until then
it is in no call that has to do with sockets. It says what it got."""
import os
import socket
import sys

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROUNDS = 40  # enough for a faster path to be found


def serve(how):
    listener = socket.create_server((address, port))
    print("ready", flush=True)
    c, _ = listener.accept()
    for _ in range(ROUNDS):
        c.sendall(c.recv(1))
    c.recv(10)
    c.sendall(b"413 too large")
    c.close()
    if how == "_exit":
        os._exit(0)


def ask(fifo):
    s = socket.create_connection((address, port), timeout=30)
    for _ in range(ROUNDS):
        s.sendall(b"p")
        s.recv(1)
    s.sendall(b"x" * 20_000)
    open(fifo).read()
    got, end = b"", "end"
    try:
        while part := s.recv(100):
            got += part
    except OSError as error:
        end = type(error).__name__
    print(f"{got.decode()}, {end}")


serve(sys.argv[4]) if role == "server" else ask(sys.argv[4])

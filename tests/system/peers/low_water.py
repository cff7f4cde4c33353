"""Readers that wait for more than their connection's ring holds (SO_RCVLOWAT).
server|client ADDRESS PORT CONNECTIONS"""
import select
import socket
import sys

address, port, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TOTAL, LOW_WATER = 300_000, 100_000


def read_all(sock):
    left = TOTAL
    while left:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        assert poll.poll(20_000), f"nothing to read, with {left} to come"
        left -= len(sock.recv(left))
        if left < LOW_WATER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


if sys.argv[1] == "server":
    listener = socket.create_server((address, port), backlog=count)
    print("ready", flush=True)
    socks = [listener.accept()[0] for _ in range(count)]
    for _ in range(50):  # until all have lanes
        for sock in socks:
            sock.sendall(sock.recv(1))
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, LOW_WATER)
        sock.sendall(b"!")
        read_all(sock)
        sock.sendall(b"!")
    print("all were readable")
else:
    socks = [socket.create_connection((address, port)) for _ in range(count)]
    for _ in range(50):
        for sock in socks:
            sock.sendall(b"?")
        for sock in socks:
            assert sock.recv(1) == b"?"
    for sock in socks:
        assert sock.recv(1) == b"!"
        sock.sendall(bytes(TOTAL))
        assert sock.recv(1) == b"!"

"""Bytes as they are asked for. server ADDRESS PORT CHILDREN: so many children that serve, or 0: itself;
client ADDRESS PORT UNREAD READ SIZE: so many connections that ask and do not read yet, then so many one after the other that
do, and then the first ones; both ADDRESS PORT UNREAD READ SIZE: one that serves itself."""
import os
import signal
import socket
import struct
import sys
import threading

PATTERN = bytes(i * 131 % 251 for i in range(1 << 20))
REQUEST = struct.Struct("!I1200x")  # no small segment


def serve(connection):
    try:
        while asked := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            connection.sendall(PATTERN[:REQUEST.unpack(asked)[0]])
    except OSError:
        pass


def ask(address, size):
    connection = socket.create_connection(address)
    connection.sendall(REQUEST.pack(size))
    return connection


def is_right(connection, size):
    return connection.recv(size, socket.MSG_WAITALL) == PATTERN[:size]


def serve_all(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


role, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if role != "client":
    listener = socket.create_server(address, backlog=1000)
if role == "both":
    threading.Thread(target=serve_all, args=(listener,), daemon=True).start()
if role == "server":
    children = int(sys.argv[4])
    print("ready", flush=True)
    for _ in range(children):
        if os.fork() == 0:
            break
    else:
        if children:
            signal.pause()
    serve_all(listener)
unread, read, size = (int(argument) for argument in sys.argv[4:7])
waiting = [ask(address, size) for _ in range(unread)]
wrong = 0
for _ in range(read):
    with ask(address, size) as connection:
        wrong += not is_right(connection, size)
print("wrong", wrong + sum(not is_right(connection, size) for connection in waiting))

"""Ends the process while its other threads send and receive: nothing of that end may show in them.
    exit_beside_threads.py ADDRESS PORT exit|_exit"""
import ctypes
import os
import socket
import sys
import threading

address, port, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
running = threading.Barrier(5)


def echo(size):
    s = socket.create_connection((address, port))
    block, first = bytes(size), True
    try:
        while True:
            s.sendall(block)
            left = size
            while left:
                got = s.recv(left)
                if not got:
                    raise ConnectionError("an end that nobody made")
                left -= len(got)
            if first:
                running.wait()
            first = False
    except OSError as problem:
        os.write(2, f"a thread saw {problem!r}\n".encode())
        os._exit(3)


for size in (1, 1000, 100000, 1000000):
    threading.Thread(target=echo, args=(size,), daemon=True).start()
running.wait()
if way == "_exit":
    os._exit(0)
ctypes.CDLL(None).exit(0)

"""A server that answers each connection with what it sees of processes and descriptors that are not its own. A line on
standard input says what it does next: `drop` gives root up, `end` ends it.

beside_keeper.py ADDRESS PORT"""
import json
import os
import select
import signal
import socket
import sys

NOBODY = 65534
children_heard = 0


def count_child(*_):
    global children_heard
    children_heard += 1


signal.signal(signal.SIGCHLD, count_child)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(16)
print("listening", flush=True)


def answer():
    s, _ = listener.accept()
    try:
        os.waitpid(-1, os.WNOHANG)
        child = "a child"
    except ChildProcessError:
        child = "no child"
    s.sendall(json.dumps([child, children_heard, s.fileno(), os.getpgrp() == os.getpid()]).encode())
    s.close()


while True:
    ready, _, _ = select.select([listener, sys.stdin], [], [])
    if listener in ready:
        answer()
    if sys.stdin in ready:
        word = sys.stdin.readline().strip()
        if word == "drop":
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            print("dropped", flush=True)
        if word in ("end", ""):
            break

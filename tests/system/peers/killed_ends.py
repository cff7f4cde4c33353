"""One end of a connection. The victim brings the connection into a state, says "ready" and waits to be killed. The witness
says "ready" when it is as far, waits for a line on standard input, and then prints what it finds.

killed_ends.py victim|witness serve|connect ADDRESS PORT STATE [PROCESSES]

States:
written: the victim has written more than the witness's window takes.
unread: the witness's bytes are not read.
idle: nothing is under way.
pending: the victim's listener never accepts.
shut: the witness has ended its direction.
stream: the victim writes without end. The witness reads at once, and checks what it reads."""
import hashlib
import json
import os
import select
import signal
import socket
import sys
import threading

WRITTEN = 200_000  # the victim's send buffer takes them, and the witness's window does not
UNREAD = 100

part, way, address, port, state = sys.argv[1:6]
processes = int(sys.argv[6]) if len(sys.argv) > 6 else 1
SMALL = 8192
PATTERN = bytes(range(251)) * 251


def listen():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if part == "witness":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    s.bind((address, int(port)))
    s.listen(16)
    print("listening", flush=True)
    return s


def connect():
    s = socket.socket()
    if part == "witness":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    else:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITTEN)
    s.connect((address, int(port)))
    return s


def prepare(s):
    """The victim's part."""
    if state == "written":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * WRITTEN)
        s.sendall(random_bytes())
    if state == "unread":
        while len(s.recv(UNREAD, socket.MSG_PEEK)) < UNREAD:
            select.select([s], [], [])
    if state == "shut":
        assert s.recv(1) == b""


def random_bytes():
    return b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(WRITTEN // 32))


def use_memory():
    while True:
        bytes(200_000)


def victim():
    for _ in range(int(os.environ.get("VICTIM_THREADS", 0))):
        threading.Thread(target=use_memory, daemon=True).start()
    # the connections are made first, and then those who have them: each process has one of its own
    listener = listen() if way == "serve" else None
    if state == "pending":
        while not select.select([listener], [], [], 60)[0]:
            pass
    else:
        connections = [listener.accept()[0] if listener else connect() for _ in range(processes)]
        for i in range(1, processes):
            if os.fork() == 0:
                connections = [connections[i]]
                break
        prepare(connections[0])
    print(f"ready {os.getpid()}", flush=True)
    while state == "stream":
        connections[0].sendall(PATTERN)
    signal.pause()


def witness():
    listener = listen() if way == "serve" else None
    ends = [listener.accept()[0] if listener else connect() for _ in range(processes)]
    for s in ends:
        s.settimeout(20)
        if state == "unread":
            s.sendall(b"x" * UNREAD)
        if state == "shut":
            s.shutdown(socket.SHUT_WR)
    print("ready", flush=True)
    if state != "stream":
        sys.stdin.readline()
    print(json.dumps([found(s) for s in ends]), flush=True)


def found(s):
    got, digest = 0, hashlib.sha256()
    try:
        while data := s.recv(65536):
            begin = got % len(PATTERN)
            if state == "stream" and data != (PATTERN * 3)[begin:begin + len(data)]:
                return "wrong bytes"
            got += len(data)
            digest.update(data)
        end = "end"
    except OSError as error:
        end = type(error).__name__
    return [got, digest.hexdigest()[:8], end, s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]


{"victim": victim, "witness": witness}[part]()

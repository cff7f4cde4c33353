"""serves_beside.py ADDRESS PORT HOW FIRST [CHILD]: root's master answers connections itself, beside a child that gives root
up. HOW the master waits: accept, poll, select or epoll. The child is made when the master has answered FIRST connections.
It never uses the listener that it has inherited; but where CHILD is `works` it answers, too, and the master goes on once
it has answered one. Where CHILD is `each`, the master makes one for each connection, which answers there."""
import os
import select
import signal
import socket
import sys

address, port, how, first = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
works, each = sys.argv[5:] == ["works"], sys.argv[5:] == ["each"]
listener = socket.create_server((address, port), backlog=16)


def drop():
    os.setgid(65534)
    os.setuid(65534)


def answer_in_child(connection):
    if os.fork() == 0:
        drop()
        answer(connection)
        os._exit(0)
    connection.close()


def make_helper():
    told, tells = os.pipe()
    if os.fork() == 0:
        drop()
        if works:
            print("works", flush=True)
            answer(listener.accept()[0])
        os.write(tells, b"d")
        while works:
            answer(listener.accept()[0])
        while True:
            signal.pause()
    os.close(tells)
    print("dropped" if os.read(told, 1) else "ended", flush=True)


def answer(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def wait():
    global waits
    if how == "poll":
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.poll()
    elif how == "select":
        select.select([listener], [], [])
    elif how == "epoll":
        if waits is None:
            waits = select.epoll()
            waits.register(listener, select.EPOLLIN)
        waits.poll()
    if how != "accept":
        listener.setblocking(False)


waits = None  # a set that the master makes when it first waits
answered = 0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if answered == first and not each:
        make_helper()
    print("waits", answered, flush=True)
    wait()
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        continue
    connection.setblocking(True)
    answer_in_child(connection) if each else answer(connection)
    answered += 1

"""in_new_network.py ADDRESS PORT HOW: a server whose child goes on with a connection in a network namespace of its own;
says what each finds.
HOW: clone: the child begins there, by clone(2) itself; unshare: it goes there; forks: it begins there, and so does a
child of its own; passed: a child that was forked before is there, and another child
gives it the connection (SCM_RIGHTS)."""
import ctypes
import os
import signal
import socket
import sys

CLONE_NEWNET, SYS_CLONE = 0x40000000, 56
libc = ctypes.CDLL(None, use_errno=True)


def say(*words):
    print(*words, flush=True)


def clone():
    return libc.syscall(SYS_CLONE, CLONE_NEWNET | signal.SIGCHLD, None, None, None, 0)


def interfaces():
    return [name for _, name in socket.if_nameindex()]


def caught(call):
    try:
        return call()
    except OSError as error:
        return error.strerror


def serve(connection, name):
    """Waits for each message, and answers 3 MB."""
    while got := connection.recv(100):
        connection.sendall(name + got + bytes(3 << 20))
    made = socket.socket()
    made.settimeout(10)
    say(name, "ended", interfaces(), caught(lambda: made.connect((connection.getpeername()[0], 9))))
    connection.close()
    sys.stdout.flush()
    os._exit(0)


def cloned(connection):
    child = clone()
    if child == 0:
        serve(connection, b"child")
    return child


def unshared(connection):
    child = os.fork()
    if child == 0:
        say("unshare", libc.unshare(CLONE_NEWNET))
        serve(connection, b"child")
    return child


def forked_twice(connection):
    child = clone()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            serve(connection, b"grandchild")
        connection.close()
        say("grandchild", os.waitpid(grandchild, 0)[1])
        os._exit(0)
    return child


ours, theirs = socket.socketpair()


def passed(connection):
    child = os.fork()
    if child == 0:
        socket.send_fds(ours, [b"it"], [connection.fileno()])
        os._exit(0)
    connection.close()
    say("child", os.waitpid(child, 0)[1])
    return helper


how = {"clone": cloned, "unshare": unshared, "forks": forked_twice, "passed": passed}[sys.argv[3]]
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
helper = clone() if how is passed else None
if helper == 0:
    serve(socket.socket(fileno=socket.recv_fds(theirs, 10, 1)[1][0]), b"helper")
say("listening")
connection, _ = listener.accept()
child = how(connection)
connection.close()
say("child", os.waitpid(child, 0)[1])

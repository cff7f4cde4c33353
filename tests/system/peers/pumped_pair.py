"""pumped_pair.py PORT FOLDER HOW: root accepts a connection and forks a child, which gives root up. Both go on with the
connection, in turn; a file FOLDER/N begins step N. What each finds is said.
HOW: alternate, reset, unread, aside; recv, waitall, poll, select, send, sendfile: how the parent waits for it while the child gives root up; spawn: the
parent spawns, and then computes; vfork: a child of the parent's is given it; full: the parent has no
descriptors left; passed: it goes by SCM_RIGHTS."""
import ctypes
import fcntl
import hashlib
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

port, folder, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
BULK = 3 << 20


def step(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.005)


def tell(name):
    open(f"{folder}/{name}", "w").close()


def say(*words):
    print(*words, flush=True)


def await_bytes(connection, count):
    """Until so many lie there, read by nobody."""
    while struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"0000"))[0] < count:
        select.select([connection], [], [])
        time.sleep(0.001)


class Partner:
    """The child, which does what it is told: `do` says what it has found."""

    def __init__(self, connection):
        asks, self.ask = os.pipe()
        self.answer, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.ask)
            while name := os.read(asks, 100):
                os.write(answers, repr(STEPS[name.decode()](connection)).encode())
            os._exit(0)
        os.close(asks)
        os.close(answers)

    def do(self, name):
        os.write(self.ask, name.encode())
        return os.read(self.answer, 4000).decode()

    def end(self):
        os.close(self.ask)
        return os.waitpid(self.pid, 0)[1]


def drop(_):
    ended = []
    signal.signal(signal.SIGCHLD, lambda *_: ended.append(caught(lambda: os.waitpid(-1, os.WNOHANG))))
    os.setgid(65534)
    os.setuid(65534)
    return os.getresuid(), ended


def passed(connection):
    """The parent hands it on before it has made a call on it since it moved."""
    partner = Partner(connection)
    ours, theirs = socket.socketpair()
    say("child", partner.do("drop"))
    socket.send_fds(ours, [b"it"], [connection.fileno()])
    got = socket.socket(fileno=socket.recv_fds(theirs, 10, 1)[1][0])
    say("got", got.recv(4), got.sendall(b"tail"))
    tell("passed")
    step("looked")
    say("child", partner.end())


def full(connection):
    """The parent has as many descriptors as it may when it comes for its end."""
    partner = Partner(connection)
    limit = 64
    say("child", partner.do("drop"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 2 * limit))
    many = []

    def fill():
        while isinstance(more := caught(lambda: os.open("/dev/null", os.O_RDONLY)), int):
            many.append(more)
        return more
    say("full", fill(), resource.getrlimit(resource.RLIMIT_NOFILE))
    say("selected", [len(found) for found in select.select([connection], [], [], 30)])
    say("parent", connection.recv(4), connection.sendall(b"tail"), resource.getrlimit(resource.RLIMIT_NOFILE))
    # The library's thread may have had a number for a moment while the table was filled: a descriptor of its own begins
    # at the lowest number.
    say("more", fill(), len(many), partner.end())


def caught(call):
    try:
        return call()
    except OSError as error:
        return error.strerror


def kinds(connection):
    option = connection.getsockopt
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = connection.getsockname() == NAMES[0], connection.getpeername() == NAMES[1]
    return names, [option(socket.SOL_SOCKET, name) for name in (socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ERROR, socket.SO_KEEPALIVE)], [
        option(socket.IPPROTO_TCP, socket.TCP_NODELAY), option(socket.IPPROTO_TCP, socket.TCP_CORK), option(socket.IPPROTO_TCP, socket.TCP_INFO, 1),
        ctypes.CDLL(None).getsockopt(connection.fileno(), socket.IPPROTO_TCP, socket.TCP_INFO, None, ctypes.byref(ctypes.c_uint(0))),
        caught(lambda: option(socket.IPPROTO_TCP, 999)), caught(lambda: connection.setsockopt(socket.IPPROTO_TCP, 999, 1))]


def process_of(connection):
    """What it says of the peer's process: a TCP socket knows none."""
    option, level = connection.getsockopt, socket.SOL_SOCKET
    peer_groups, pass_security = 59, 34
    found = [caught(lambda name=name: option(level, name, 64)) for name in (socket.SO_PEERCRED, socket.SO_PEERSEC, peer_groups)]
    return found, [(caught(lambda name=name: connection.setsockopt(level, name, 1)), caught(lambda name=name: option(level, name)))
                   for name in (socket.SO_PASSCRED, pass_security)]


def named(connection):
    buffer = bytearray(1)
    return connection.recvfrom(1, socket.MSG_PEEK), connection.recvmsg(1, 0, socket.MSG_PEEK)[3], connection.recvfrom_into(buffer, 1, socket.MSG_PEEK)


def all_sent(connection):
    """Once nothing is on its way (SIOCOUTQ). The peer has it all by now."""
    while left := struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"0000"))[0]:
        time.sleep(0.001)
    return left


def nothing_there(connection):
    waits = caught(lambda: connection.recv(1, socket.MSG_DONTWAIT))
    connection.setblocking(False)
    also = caught(lambda: connection.recv(1))
    connection.setblocking(True)
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLOUT)
    return waits, also, [events for _, events in poll.poll(0)]


def by_epoll(connection):
    with select.epoll() as epoll:
        epoll.register(connection, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        return [events for _, events in epoll.poll(20)]


def bulk(seed):
    return hashlib.shake_128(str(seed).encode()).digest(BULK)


STEPS = {
    "drop": drop,
    "read": lambda connection: connection.recv(1),
    "read all": lambda connection: caught(lambda: connection.recv(100)),
    "peek": lambda connection: connection.recv(100, socket.MSG_PEEK),
    "kinds": kinds,
    "process": process_of,
    "named": named,
    "all sent": all_sent,
    "nothing": nothing_there,
    "send": lambda connection: connection.sendall(bulk(1)),
    "say": lambda connection: connection.sendall(b"tail"),
    "epoll": by_epoll,
    "close": lambda connection: connection.close(),
}


def alternate(connection):
    await_bytes(connection, 4)
    partner = Partner(connection)
    say("parent", connection.recv(1))
    say("child", partner.do("drop"), partner.do("read"))
    say("parent", connection.recv(1), "child", partner.do("peek"), partner.do("read"))
    say("kinds", kinds(connection) == eval(partner.do("kinds")), kinds(connection))
    say("nothing", nothing_there(connection), partner.do("nothing"))
    say("process", process_of(connection), partner.do("process"))
    tell("digits")
    await_bytes(connection, 20)
    say("named", named(connection), partner.do("named"))
    say("".join((connection.recv(1) if i % 2 else eval(partner.do("read"))).decode() for i in range(20)))
    say("bulk", partner.do("send"), connection.sendall(bulk(2)))
    step("edge")
    say("all sent", all_sent(connection), partner.do("all sent"))
    await_bytes(connection, 4)
    say("epoll", partner.do("epoll"), by_epoll(connection), partner.do("read all"))
    tell("half")
    step("shut")
    say("end", connection.recv(100), partner.do("read all"), partner.do("epoll"), by_epoll(connection))
    say("tail", partner.do("say"), partner.do("close"), partner.end())
    say("shut", connection.shutdown(socket.SHUT_WR), caught(lambda: connection.send(b"x")), connection.recv(1))


def reset(connection):
    partner = Partner(connection)
    say("child", partner.do("drop"), partner.do("read all"))
    tell("reset")
    say("child", partner.do("read all"), "parent", caught(lambda: connection.recv(100)), partner.do("read all"))
    say("sent", caught(lambda: connection.send(b"x")), partner.end())


def unread(connection):
    """Closed by both with bytes unread: the peer is reset behind what was sent."""
    await_bytes(connection, 4)
    partner = Partner(connection)
    say("child", partner.do("drop"), partner.do("read"))
    connection.close()
    say("child", partner.do("say"))
    step("tail")
    say("child", partner.do("close"), partner.end())


def aside(connection):
    """The parent serves a user for a while. It has done so before: so the kernel lets only the capable at its children."""
    os.seteuid(65534)
    os.seteuid(0)
    await_bytes(connection, 4)
    partner = Partner(connection)
    say("child", partner.do("drop"), partner.do("read"))
    os.seteuid(65534)
    say("parent", caught(lambda: connection.recv(1)), caught(lambda: connection.send(b"x")), os.geteuid())
    os.seteuid(0)
    say("child", partner.do("read all"), partner.do("close"), partner.end())


def waits(connection):
    """A call of the parent's that waits while the connection moves."""
    await_bytes(connection, 4 if how == "waitall" else 0)
    partner = Partner(connection)
    file = tempfile.TemporaryFile()
    file.write(bulk(1) + bulk(2))
    file.seek(0)
    parent = os.getpid()
    if os.fork() == 0:
        while open(f"/proc/{parent}/wchan").read() in ("0", "pipe_read", "do_wait"):
            time.sleep(0.005)
        say("child", partner.do("drop"))
        tell("dropped")
        step("read")
        say("child", partner.do("read all"))
        os._exit(0)
    if how == "send":
        say("parent", connection.send(bulk(1) + bulk(2)))
    if how == "sendfile":
        say("parent", os.sendfile(connection.fileno(), file.fileno(), 0, 2 * BULK), file.tell())
    if how == "waitall":
        say("parent", connection.recv(8, socket.MSG_WAITALL))
    if how == "poll":
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        say("polled", [events for _, events in poll.poll(30000)])
    if how == "select":
        say("selected", [len(found) for found in select.select([connection], [], [], 30)])
    say("parent", connection.recv(1))
    tell("read")
    os.wait()
    say("parent", connection.close(), partner.end())


def spawn(connection):
    """What the peer sends is acknowledged though the parent calls nothing."""
    partner = Partner(connection)
    say("ran", os.system("true"))
    tell("ran")
    step("acknowledged")
    say("parent", connection.recv(100), partner.end())


def vfork(connection):
    """The parent has made no call on it since it moved."""
    partner = Partner(connection)
    say("child", partner.do("drop"))
    say("ran", subprocess.run(["echo", "hello"], stdout=connection).returncode)
    say("parent", connection.recv(4), connection.sendall(b"tail"), partner.end())


with socket.create_server((sys.argv[4], port)) as listener:
    say("listening")
    accepted, _ = listener.accept()
NAMES = accepted.getsockname(), accepted.getpeername()
{"alternate": alternate, "reset": reset, "unread": unread, "aside": aside, "spawn": spawn, "vfork": vfork, "full": full, "passed": passed}.get(how, waits)(accepted)
say("done")

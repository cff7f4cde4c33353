"""relayed_steps.py ADDRESS PORT FREE_PORT STEP...: a root master listens at ADDRESS PORT. A child of it that has given root up
listens at FREE_PORT, and connects to the client (scripted by relayed_client.py over a connection to PORT, the words). Says
what each step finds.   STEP: a function below"""
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time

address, port, free = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
USER = 23456


def say(*words):
    print(*words, flush=True)


def caught(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


class Client:
    """Does what it is told by a word."""

    def __init__(self, words):
        self.words, self.peer = words.makefile("rw"), words.getpeername()

    def ask(self, *words):
        self.words.write(" ".join(map(str, words)) + "\n")
        self.words.flush()
        return self.words.readline().strip()


def listening(reuse=True):
    listener = socket.socket()
    if reuse:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, free))
    listener.listen(8)
    return listener


def options(one):
    return [one.getsockopt(socket.SOL_SOCKET, name)
            for name in (socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN, socket.SO_ERROR)]


def no_room(one):
    """getpeername() and getsockname() without room for the name."""
    libc = ctypes.CDLL(None)
    return [call(one.fileno(), None, ctypes.byref(ctypes.c_uint(0))) for call in (libc.getpeername, libc.getsockname)]


def ready(one, events=select.POLLIN, wait=20000):
    poll = select.poll()
    poll.register(one, events)
    return [found for _, found in poll.poll(wait)]


def listener(client):
    own = listening()
    own.setblocking(False)
    say("names", own.getsockname() == (address, free), caught(own.getpeername), no_room(own), options(own))
    say("nothing", caught(own.accept), ready(own, wait=0), ready(own, select.POLLOUT, 0), caught(own.listen, 4), caught(own.connect, (address, port)))
    say("asked", client.ask("connect", free))
    say("ready", ready(own), select.select([own], [], [], 20)[0] == [own])
    epoll = select.epoll()
    epoll.register(own, select.EPOLLIN)
    say("epoll", [found for _, found in epoll.poll(20)])
    taken, peer = own.accept()
    say("taken", no_room(taken), peer[0] == taken.getpeername()[0], peer == taken.getpeername(), taken.getsockname() == (address, free), options(taken))
    say("inherits", taken.getblocking(), fcntl.fcntl(taken, fcntl.F_GETFD), fcntl.fcntl(taken, fcntl.F_GETFL) & os.O_NONBLOCK)
    taken.settimeout(20)
    taken.sendall(b"question")
    say("answer", taken.recv(6, socket.MSG_WAITALL), client.ask("close"), taken.recv(1))
    taken.close()
    libc = ctypes.CDLL(None, use_errno=True)
    say("again", client.ask("connect", free), ready(own))
    number = libc.accept4(own.fileno(), None, None, os.O_NONBLOCK | os.O_CLOEXEC)
    say("flags", number >= 0, fcntl.fcntl(number, fcntl.F_GETFD), fcntl.fcntl(number, fcntl.F_GETFL) & os.O_NONBLOCK,
        libc.accept4(own.fileno(), None, None, 1), errno.errorcode[ctypes.get_errno()])
    os.close(number)
    say("closed", client.ask("close"))
    own.setblocking(True)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
    say("timeout", caught(own.accept))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    say("shut", caught(own.shutdown, socket.SHUT_RDWR), caught(own.accept))


def refused_at_last(client):
    """A relay hears of the end of its listener a moment later, as docs/trust.md says."""
    deadline = time.monotonic() + 20
    while (answer := client.ask("connect", free)) == "done" and time.monotonic() < deadline:
        client.ask("close")
    return answer


def closes(client):
    own = listening()
    say("connected", client.ask("connect", free), ready(own))
    own.close()
    say("ends", client.ask("ended"), client.ask("close"), refused_at_last(client))
    own = listening()
    say("anew", client.ask("connect", free), own.accept()[0].recv(0), client.ask("close"))


def waits(one):
    """Until a connect() that does not block has ended."""
    poll = select.poll()
    poll.register(one, select.POLLOUT)
    return bool(poll.poll(20000))


def refused(client):
    where = (client.peer[0], int(client.ask("unused")))
    one = socket.socket()
    say("blocking", caught(one.connect, where), caught(one.connect, where) in (None, "EISCONN"))
    one = socket.socket()
    one.setblocking(False)
    say("not blocking", caught(one.connect, where), waits(one), errno.errorcode[one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)], caught(one.getpeername))


def connects(client):
    where = (client.peer[0], int(client.ask("listen")))
    one = socket.socket()
    one.bind((address, 0))
    one.setblocking(False)
    say("begins", caught(one.connect, where), waits(one), one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), caught(one.connect, where))
    say("names", one.getpeername() == where, one.getsockname()[0] == address, options(one), client.ask("accept") == str(one.getsockname()[1]))
    one.settimeout(20)
    one.sendall(b"question")
    say("answer", one.recv(6, socket.MSG_WAITALL), client.ask("close"), one.recv(1))
    one = socket.socket()
    one.settimeout(20)
    say("with a limit", caught(one.connect, where), one.getpeername() == where, bool(client.ask("accept")))
    big = bytes(range(256)) * 8192
    one.sendall(b"big of " + str(len(big)).encode() + b"\n" + big)
    say("back", sum(map(len, iter(lambda: one.recv(65536), b""))) == len(big), client.ask("close"))


def blocks(client):
    where = (client.peer[0], int(client.ask("listen")))
    one = socket.socket()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    say("blocking", caught(one.connect, where), caught(one.connect, where), one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), one.getpeername() == where)
    say("ended", bool(client.ask("accept")), one.sendall(b"question"), one.recv(6, socket.MSG_WAITALL), client.ask("close"), one.recv(1))


def low(client):
    """A port for which it has no right."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        say("from", file.read().strip())
    say("bind", caught(socket.socket().bind, (address, 80)))


def forked(client):
    own = listening()
    child = os.fork()
    if child == 0:
        taken, _ = own.accept()
        taken.sendall(b"question")
        os._exit(0 if taken.recv(6, socket.MSG_WAITALL) == b"answer" else 1)
    own.close()
    say("connected", client.ask("connect", free), os.waitpid(child, 0)[1], client.ask("ended"), client.ask("close"))


def stands(client):
    """A connection that the client has made, and the listener."""
    own = listening()
    client.ask("connect", free)
    taken, _ = own.accept()
    taken.settimeout(20)
    return own, taken


def killed(client):
    """The relay is killed meanwhile."""
    own, taken = stands(client)
    say("kill")
    poll = select.poll()
    poll.register(own, 0)
    poll.poll(20000)
    say("accept", caught(own.accept), caught(own.accept))
    own.close()
    one = socket.socket()
    say("connect", caught(one.connect, client.peer))
    taken.sendall(b"question")
    say("stands", taken.recv(6, socket.MSG_WAITALL), client.ask("close"), caught(listening))


def asking():
    """The socket by which the library asks."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(fd))
            if (one.family, one.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                return one
            one.close()
    raise AssertionError("there is no relay")


def request(kind=1, backlog=8, to="0.0.0.0", port=0):
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(to)
    return struct.pack("=II16sHH", kind, backlog, mapped, port, 0)


def bound(kind=socket.SOCK_STREAM, at=address, number=0):
    one = socket.socket(socket.AF_INET, kind)
    one.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
    if at is not None:
        one.bind((at, number))
    return one


def asked(relay, record, *passed):
    """What the relay answers."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(20)
    socket.send_fds(relay, [record], [one.fileno() for one in passed] + [there.fileno()])
    there.close()
    told, fds, _, _ = socket.recv_fds(here, 64, 4)
    error = struct.unpack("i", told)[0] if told else None
    return errno.errorcode.get(error, error), fds


def hostile(client):
    """Records that no library sends."""
    own, taken = stands(client)
    relay = asking()
    for record in (b"", b"x", request() + b"x", bytes(5000)):
        relay.send(record)
        say("bad record", len(record), asked(relay, record, bound())[0] if record else None)
    say("kinds", [asked(relay, request(kind=kind), bound())[0] for kind in (0, 4, 0xffffffff)])
    with open("/dev/null") as file:
        wrong = [file, socket.socket(socket.AF_UNIX), bound(socket.SOCK_DGRAM), bound(at=None), bound(at="0.0.0.0"), bound(at="192.0.2.1"), taken]
        say("wrong", [asked(relay, request(), one)[0] for one in wrong])
    kernels = socket.socket()
    kernels.bind(("127.0.0.1", 0))
    kernels.listen()
    say("listens", asked(relay, request(), kernels)[0], asked(relay, request(kind=2, to="127.0.0.1", port=9), bound(at=None))[0],
        asked(relay, request(kind=2), bound(at=None))[0], asked(relay, request(kind=2, to=client.peer[0], port=9), bound(at="192.0.2.1"))[0])
    with bound() as first, open("/dev/null") as file:
        socket.send_fds(relay, [request()], [first.fileno()] + [file.fileno()] * 200)
        socket.send_fds(relay, [request()], [])
    got = [asked(relay, request(), bound()) for _ in range(80)]
    errors = [error for error, _ in got]
    say("many", errors.count(0), set(errors) - {0})
    for _, fds in got:
        for fd in fds:
            os.close(fd)
    silent, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(2000):
        socket.send_fds(relay, [request(kind=7)], [own.fileno(), other.fileno()])
    silent.close(), other.close(), own.close()
    taken.sendall(b"question")
    say("goes on", taken.recv(6, socket.MSG_WAITALL), client.ask("close"))
    own, taken = stands(client)
    taken.sendall(b"question")
    say("serves", taken.recv(6, socket.MSG_WAITALL), client.ask("close"))


def elsewhere(client):
    """A socket of another network namespace."""
    relay = asking()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000 | 0x40000000) != 0:  # CLONE_NEWUSER, CLONE_NEWNET
        return say("no namespaces")
    say("elsewhere", asked(relay, request(), bound())[0])


class Line(ctypes.Structure):
    """sock_filter"""
    _fields_ = [("code", ctypes.c_ushort), ("jump", ctypes.c_ubyte), ("otherwise", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Filter(ctypes.Structure):
    """sock_fprog"""
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.POINTER(Line))]


def forbid_connect():
    """By a filter of system calls: connect() says EPERM."""
    connect, refuse, allow = 42, 0x50001, 0x7FFF0000
    lines = (Line * 4)(Line(0x20, 0, 0, 0), Line(0x15, 0, 1, connect), Line(6, 0, 0, refuse), Line(6, 0, 0, allow))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if libc.prctl(22, 2, ctypes.byref(Filter(4, lines)), 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "no filter")


def ask_for_rules():
    """Of landlock(7). Where the kernel has none, the call fails, and the relay is given up all the same."""
    ctypes.CDLL(None).syscall(446, -1, 0)  # landlock_restrict_self


def has_relay(forbid):
    """Whether a child has one that has forbidden itself calls."""
    child = os.fork()
    if child == 0:
        forbid()
        try:
            asking()
        except AssertionError:
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def confined(client):
    say("has", has_relay(lambda: None), has_relay(forbid_connect), has_relay(ask_for_rules))


def main():
    with socket.create_server((address, port)) as master:
        say("listening")
        words, _ = master.accept()
        child = os.fork()
        if child == 0:
            master.close()
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            client = Client(words)
            for step in sys.argv[4:]:
                say("--", step)
                globals()[step](client)
            say("bye", client.ask("end"))
            os._exit(0)
        words.close()
        say("child", os.waitpid(child, 0)[1])


main()

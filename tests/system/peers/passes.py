"""passes.py WHAT ADDRESS PORT: a process passes sockets to a child that it has forked before it made them.
kinds: sockets of all kinds, in one message, with a pipe among them. The sender ends at once.
forms: each way to send and to receive, and what the receiver is told.
dropped: receivers that read no descriptors, have no room for them, or end. What nobody has any more ends.
threads: several threads pass connections by a named socket, while others are passed on to a third process.
killed: two processes pass a connection to and fro, until one is killed at a random moment.
stranger: a program without the library has the other end, too, and gets a connection that it can use."""
import array
import os
import random
import select
import signal
import socket
import sys
import threading
import time

what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
RIGHTS = socket.SOL_SOCKET, socket.SCM_RIGHTS


def line(connection):
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(1)
        if not part:
            return text
        text += part
    return text


def numbers_in(ancillary):
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == RIGHTS:
            found.frombytes(data[:len(data) - len(data) % found.itemsize])
    return list(found)


def receive(channel, room=4, flags=0, control=None):
    text, ancillary, told, _ = channel.recvmsg(100, socket.CMSG_SPACE(4 * room) if control is None else control, flags)
    return text, numbers_in(ancillary), told


def rights(*sockets):
    return [(*RIGHTS, array.array("i", [one if isinstance(one, int) else one.fileno() for one in sockets]))]


def child(function, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
        finally:
            os._exit(0)
    return pid


def listens():
    listener = socket.create_server((address, port), backlog=64)
    print("ready", flush=True)
    return listener


def answer(connection):
    connection.sendall(line(connection).upper())


def serve_kinds(channel):
    text, numbers, _ = receive(channel, 8)
    pipe, number, rest = numbers[0], numbers[1], numbers[2:]
    os.write(pipe, b"pipe\n")
    connection, listener, datagrams, waits = socket.socket(fileno=number), *map(lambda n: socket.socket(fileno=n), rest[:2]), \
        select.epoll.fromfd(rest[2])
    print(text, len(numbers), connection.getpeername()[0] != "", listener.getsockname()[1] == port, flush=True)
    answer(connection)
    waits.poll()
    answer(listener.accept()[0])
    text, peer = datagrams.recvfrom(100)
    datagrams.sendto(text.upper(), peer)
    late = socket.socket(fileno=rest[3])
    late.connect(peer)
    late.send(b"from the one that was not connected")


def kinds():
    ours, theirs = socket.socketpair()
    pid = child(serve_kinds, theirs)
    listener = listens()
    datagrams, late = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    datagrams.bind((address, port))
    connection = listener.accept()[0]
    waits = select.epoll()
    waits.register(listener, select.EPOLLIN)
    read, write = os.pipe()
    ours.sendmsg([b"all"], rights(write, connection, listener, datagrams, waits.fileno(), late))
    for one in (connection, listener, datagrams, waits, late):
        one.close()
    os.close(write)
    os.waitpid(pid, 0)
    print(os.read(read, 100), flush=True)


def serve_forms(channel):
    def told(got):
        text, numbers, flags = got
        flags &= ~getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
        state = [(os.get_inheritable(number), os.fstat(number).st_mode >> 12) for number in numbers]
        print(text, len(numbers), flags, state, flush=True)
        return [socket.socket(fileno=number) for number in numbers]
    looked = told(receive(channel, flags=socket.MSG_PEEK))
    answer(looked[0])
    first = told(receive(channel))
    answer(first[0])
    second = told(receive(channel, flags=0x40000000))
    answer(second[0])
    third = told(receive(channel, room=1, control=socket.CMSG_LEN(4)))
    answer(third[0])
    channel.sendmsg([b"back"], rights(second[0]))


def forms():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = child(serve_forms, theirs)
    theirs.close()
    listener = listens()
    one, other = listener.accept()[0], listener.accept()[0]
    ours.sendmsg([b"first"], rights(one, other))
    ours.sendmsg([b"second"], rights(other, one))
    ours.sendmsg([b"third"], rights(one, other))
    back = receive(ours)[1]
    answer(socket.socket(fileno=back[0]))
    os.waitpid(pid, 0)
    print(receive(ours)[0], flush=True)


def serve_dropped(channel):
    print(channel.recv(100), flush=True)  # its descriptors are dropped
    receive(channel, control=0)
    os.kill(os.getpid(), signal.SIGKILL)  # others wait in the channel


def dropped():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener = listens()
    connections = [listener.accept()[0] for _ in range(5)]
    for one in connections[:4]:
        ours.sendmsg([b"one"], rights(one))
        one.close()
    pid = os.fork()
    if pid == 0:
        connections[4].close()
        ours.close()
        serve_dropped(theirs)
    theirs.close()
    os.waitpid(pid, 0)
    ours.close()
    for _ in range(4):
        mine, unread = socket.socketpair()
        for _ in range(250):
            mine.sendmsg([b"x"], rights(connections[4]))
        mine.close()
        unread.close()
    connections[4].close()
    answer(listener.accept()[0])


def serve_threads(name):
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(name)
    for _ in range(8):
        answer(socket.socket(fileno=receive(channel)[1][0]))


def threads():
    name = f"\0passes-{os.getpid()}"
    meets = socket.socket(socket.AF_UNIX)
    meets.bind(name)
    meets.listen()
    pids = [child(serve_threads, name) for _ in range(2)]
    listener = listens()
    def pass_on(channel):
        for _ in range(8):
            connection = listener.accept()[0]
            channel.sendmsg([b"x"], rights(connection))
            connection.close()
    running = [threading.Thread(target=pass_on, args=(meets.accept()[0],)) for _ in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for pid in pids:
        os.waitpid(pid, 0)


def pass_to_and_fro(channel, connection):
    while True:
        if connection is not None:
            channel.sendmsg([b"x"], rights(connection))
            connection.close()
        numbers = receive(channel)[1]
        if not numbers:
            return
        connection = socket.socket(fileno=numbers[0])


def killed():
    chance = random.Random(int(sys.argv[4]))
    listener = listens()
    for _ in range(20):
        connection = listener.accept()[0]
        ours, theirs = socket.socketpair()
        pids = []
        for mine, others, begins in ((ours, theirs, connection), (theirs, ours, None)):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                listener.close()
                others.close()
                if begins is None:
                    connection.close()
                try:
                    pass_to_and_fro(mine, begins)
                except OSError:
                    pass
                os._exit(0)
            pids.append(pid)
        for one in (connection, ours, theirs):
            one.close()
        time.sleep(chance.uniform(0, 0.01))
        os.kill(chance.choice(pids), signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    answer(listener.accept()[0])


STRANGER = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
_, numbers, _, _ = socket.recv_fds(channel, 100, 4)
connection = socket.socket(fileno=numbers[0])
connection.sendall(connection.recv(100).upper())
"""


def pass_to_stranger(listener):
    """The process that has the port is another one."""
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    without = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {"LD_PRELOAD": ""}
    go, gone = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", STRANGER, str(theirs.fileno())], without)
    os.close(gone)
    os.read(go, 1)  # it has executed the program, which closes the pipe
    connection = listener.accept()[0]
    listener.close()
    ours.sendmsg([b"x"], rights(connection))
    connection.close()
    os.waitpid(pid, 0)


def stranger():
    listener = listens()
    os.waitpid(child(pass_to_stranger, listener), 0)


{"kinds": kinds, "forms": forms, "dropped": dropped, "threads": threads, "killed": killed, "stranger": stranger}[what]()

"""inherits.py WHAT ADDRESS PORT: makes sockets, and executes itself with them: inherits.py WHAT NUMBERS...
listener: serves again from the same listener, each time after a client has asked for that.
epoll: waits in the same epoll set for a listener, a connection and a datagram socket.
closed: has a connection that exec closes, and one that it leaves open.
failed: execs that fail, then goes on, with a second thread in a call.
beside: children serve connections in other images, while the master accepts.
bare: executes with an environment of its own, which the new image must see unchanged.
threads: other threads are in all kinds of calls while one executes.
killed: whoever has the port becomes cat with the connection, and is killed by the client. A child accepts on.
owner: the process that has the port executes another image while its children go on."""
import contextlib
import errno
import os
import select
import signal
import socket
import sys
import threading

what = sys.argv[1]


def become(*numbers):
    for number in numbers:
        os.set_inheritable(int(number), True)
    os.execv(sys.executable, [sys.executable, "-u", __file__, what, *map(str, numbers)])


def line(connection):
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(1)
        if not part:
            return text
        text += part
    return text


fresh = "." in sys.argv[2]
if fresh:
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])), backlog=64)
    print("ready", flush=True)
numbers = [] if fresh else [int(number) for number in sys.argv[2:]]

if what == "listener":
    if not fresh:
        listener = socket.socket(fileno=numbers[0])
    while True:
        connection, _ = listener.accept()
        asked = line(connection)
        connection.sendall(asked.upper())
        connection.close()
        if asked == b"end\n":
            break
        if asked == b"again\n":
            become(listener.fileno())
elif what == "epoll":
    if fresh:
        waits = select.epoll()
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((sys.argv[2], int(sys.argv[3])))
        connection, _ = listener.accept()
        for one in (listener, datagrams, connection):
            waits.register(one, select.EPOLLIN)
        become(waits.fileno(), listener.fileno(), datagrams.fileno(), connection.fileno())
    waits = select.epoll.fromfd(numbers[0])
    listener, datagrams, connection = (socket.socket(fileno=number) for number in numbers[1:])
    print("waits", flush=True)
    heard = {}
    while len(heard) < 3:
        for number, _ in waits.poll():
            if number == listener.fileno():
                heard["listener"] = line(listener.accept()[0])
            elif number == datagrams.fileno():
                heard["datagrams"], peer = datagrams.recvfrom(100)
                datagrams.sendto(b"heard", peer)
            else:
                heard["connection"] = line(connection)
                waits.unregister(connection)
    print(sorted(heard.items()), flush=True)
    connection.sendall(b"done\n")
elif what == "closed":
    if fresh:
        stays, goes = listener.accept()[0], listener.accept()[0]
        goes.sendall(b"written before\n")
        become(stays.fileno())
    stays = socket.socket(fileno=numbers[0])
    stays.sendall(line(stays).upper())
elif what == "failed":
    connection, other = listener.accept()[0], listener.accept()[0]
    for each in (connection, other):
        os.set_inheritable(each.fileno(), True)
    thread = threading.Thread(target=lambda: [other.sendall(line(other).upper()) for _ in range(3)])
    thread.start()
    with open("bad", "w") as file:
        file.write("#!/no/such/interpreter\n")
    os.chmod("bad", 0o755)
    for path, arguments in (("./bad", ["bad"]), ("/bin/true", ["true", *["x" * 100_000] * 100])):
        try:
            os.execv(path, arguments)
        except OSError as problem:
            print(errno.errorcode[problem.errno], flush=True)
        connection.sendall(line(connection).upper())
    connection.sendall(line(connection).upper())
    thread.join()
elif what == "bare":
    if fresh:
        connection, _ = listener.accept()
        os.set_inheritable(connection.fileno(), True)
        os.execve(sys.executable, [sys.executable, "-u", __file__, what, str(connection.fileno())], {"ONE": "variable"})
    connection = socket.socket(fileno=numbers[0])
    print({name: value for name, value in os.environ.items() if name != "LC_CTYPE"}, flush=True)
    connection.sendall(line(connection).upper())
elif what == "threads":
    if fresh:
        connections = [listener.accept()[0] for _ in range(6)]
        def sends(connection):
            while True:
                connection.sendall(bytes(200_000))
        def receives(connection):
            while True:
                connection.recv(1 << 20)
        for act, each in zip((sends, sends, receives, receives, receives), connections[1:]):
            threading.Thread(target=act, args=(each,), daemon=True).start()
        line(connections[0])
        become(connections[0].fileno(), listener.fileno())
    connection, listener = (socket.socket(fileno=number) for number in numbers)
    connection.sendall(line(connection).upper())
    third = listener.accept()[0]
    third.sendall(line(third).upper())
elif what == "killed":
    while True:
        connection, _ = listener.accept()
        if os.fork() != 0:
            connection.sendall(b"%d\n" % os.getpid())
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.execvp("cat", ["cat"])
        connection.close()
elif what == "beside":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(4):
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.execvp("cat", ["cat"])
        connection.close()
    with contextlib.suppress(ChildProcessError):
        os.wait()
elif what == "owner":
    if fresh:
        connection, other = listener.accept()[0], listener.accept()[0]
        if os.fork() == 0:
            other.sendall(line(other).upper())
            other.sendall(line(other).upper())
            os._exit(0)
        other.close()
        connection.sendall(line(connection).upper())
        become(connection.fileno(), listener.fileno())
    connection, listener = (socket.socket(fileno=number) for number in numbers)
    connection.sendall(line(connection).upper())
    third = listener.accept()[0]
    third.sendall(line(third).upper())
    os.wait()
print("ended", flush=True)

"""Connections within a host that others also use: other processes, libc's threads (aio_read), and the kernel's threads
(io_uring). Also calls that the kernel allows only to a process of one thread.   local_others.py NAME...   (no name: lists them)"""
import os
import subprocess

from agents import Agent
from harness import BUILD, LIB, Side, Skip, check, run_named
from local_pairs import cases, connected, listener, pair, warm

CASES, case, same = cases()


# --- Other processes

def pass_on(side, giver, taker, closes=False):
    """Passes the connection `s` on by SCM_RIGHTS."""
    name = "\\0" + os.path.basename(side.dir)
    taker(f"u = socket.socket(socket.AF_UNIX); u.bind('{name}'); u.listen(1)")
    giver(f"u = socket.socket(socket.AF_UNIX); u.connect('{name}')")
    taker("u = u.accept()[0]")
    giver("socket.send_fds(u, [b'x'], [s.fileno()])")
    if closes:
        giver("s.close()")
    taker("s = bounded(socket.socket(fileno=socket.recv_fds(u, 1, 1)[1][0]))")


@same
def passed_on(side):
    """A connection is passed on by SCM_RIGHTS to a program without the library. Bytes are unread in both directions. Then
    both ends go on."""
    with pair(side) as (server, client):
        stranger = Agent(side, "client", LD_PRELOAD="")
        client("s.sendall(pattern(0, 40000))")
        server("s.sendall(pattern(9, 50000))")
        pass_on(side, client, stranger)
        result = [stranger("take(s, 50000)"), stranger("s.sendall(pattern(40000, 1000))"), server("take(s, 41000)")]
        client("s.sendall(b'from both')")
        server("s.sendall(b'to one')")
        result += [server("take(s, 9)"), stranger("take(s, 6)")]
        client("s.close()")
        stranger("s.close()")
        result.append(server("s.recv(1)"))
        return result


@same
def passed_on_within(side):
    """The same, between two programs with the library."""
    with pair(side) as (server, client):
        other = Agent(side, "client")
        client("s.sendall(pattern(0, 40000))")
        server("s.sendall(pattern(9, 50000))")
        pass_on(side, client, other, closes=True)
        result = [other("take(s, 50000)"), other("s.sendall(pattern(40000, 1000))"), server("take(s, 41000)")]
        for _ in range(20):
            other("s.sendall(b'ping')")
            result.append(server("take(s, 4)"))
            server("s.sendall(b'pong')")
            result.append(other("take(s, 4)"))
        other("s.close()")
        return [*result, server("s.recv(1)")]


def passed_on_behind(end):
    """Bytes that the peer has written reach the process that gets the connection, even if the peer cannot send them
    again."""
    def scenario(side):
        result = []
        for read in (0, 1000, 40000):
            with pair(side) as (server, client):
                stranger = Agent(side, "client", LD_PRELOAD="")
                server.begin(f"s.sendall(pattern(0, 40000)); {end}")
                if "exit" in end:
                    server.child.wait(10)
                else:
                    server.end()
                client(f"take(s, {read})")
                pass_on(side, client, stranger, closes=True)
                result += [stranger(f"take(s, {40000 - read})"), stranger("s.sendall(b'answer'), s.recv(1)")]
        return result
    return scenario


for _name, _end in {"shut": "s.shutdown(socket.SHUT_WR)", "closed": "s.close()", "exited": "os._exit(0)"}.items():
    _scenario = passed_on_behind(_end)
    _scenario.__name__ = f"passed_on_behind_an_end_that_{'was_' if _name == 'shut' else ''}{_name}"
    same(_scenario)


@same
def passed_on_with_more_than_the_ring(side):
    """The writer waited for room and went on over the kernel. Its reader has read none of the bytes, or some."""
    result = []
    for read in (0, 1000, 100000):
        with pair(side) as (server, client):
            stranger = Agent(side, "client", LD_PRELOAD="")
            server("s.sendall(pattern(0, 600000))")
            client(f"take(s, {read})")
            server("s.sendall(pattern(600000, 50000))")
            pass_on(side, client, stranger, closes=True)
            result += [stranger(f"take(s, {650000 - read})"), stranger("s.sendall(b'answer')"), server("take(s, 6)")]
    return result


SHELL = "exec timeout 10 head -c 7 <&%d"


@same
def inherited_before_it_connects(side):
    """A program inherits the socket before it connects, and reads from it later. The connection stays where that program
    can read it."""
    result = []
    for how, prepare in (("vfork", "None"), ("fork", "lambda: None")):
        server, client = Agent(side, "server"), Agent(side, "client")
        port = listener(server)
        client(f"s = bounded(socket.socket()); s.set_inheritable(True); shell = {SHELL!r} % s.fileno()")
        client("o = subprocess.Popen(['/bin/sh', '-c', 'read line; ' + shell], pass_fds=[s.fileno()], stdin=-1, stdout=-1, "
               f"preexec_fn={prepare})")
        client(f"s.connect(('127.0.0.1', {port}))")
        server("s = bounded(l.accept()[0])")
        for _ in range(20):
            warm(server, client, shared=False)
        server("s.sendall(b'inchild')")
        result.append([how, client("o.communicate(b'\\n')[0]"), server("s.sendall(b'after')"), client("take(s, 5)")])
    return result


@same
def inherited_by_a_shell(side):
    """system() and popen() inherit the connection."""
    with pair(side) as (server, client):
        client(f"s.set_inheritable(True); shell = {SHELL!r} % s.fileno(); libc = ctypes.CDLL(None)")
        server("s.sendall(b'inchild')")
        result = [client("libc.system((shell + ' >&2').encode())"), server("s.sendall(b'after')"), client("take(s, 5)")]
        server("s.sendall(b'inchild')")
        client("libc.popen.restype = ctypes.c_void_p; p = libc.popen(shell.encode(), b'r')")
        client("b = ctypes.create_string_buffer(7); n = libc.fread(b, 1, 7, ctypes.c_void_p(p))")
        return [*result, client("b.raw"), client("libc.pclose(ctypes.c_void_p(p))"), server("s.sendall(b'after')"),
                client("take(s, 5)")]


SPAWN = {
    "fork": "child = subprocess.Popen(['/bin/cat'], stdin=s, stdout=s, env=env, preexec_fn=lambda: None)",
    "vfork": "child = subprocess.Popen(['/bin/cat'], stdin=s, stdout=s, env=env)",
    "posix_spawn": "child = os.posix_spawn('/bin/cat', ['cat'], env, "
                   "file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), n) for n in (0, 1)])",
}


def standard_input_after(how, loaded):
    """The connection becomes the input and output of another program, with bytes unread in both directions."""
    def scenario(side):
        with pair(side) as (server, client):
            server("s.sendall(b'first line\\n')")
            client("s.sendall(b'hello\\n')")
            client(f"env = dict(os.environ, LD_PRELOAD='{LIB if loaded and side.name == 'local' else ''}')")
            client(SPAWN[how])
            client("s.close()")
            server("s.sendall(b'second\\n' * 1000)")
            server("s.shutdown(socket.SHUT_WR)")
            return server("take(s, 100000)")
    scenario.__name__ = f"input_of_a_{'loaded' if loaded else 'plain'}_program_by_{how}"
    return same(scenario)


for way in SPAWN:
    for is_loaded in (False, True):
        standard_input_after(way, is_loaded)


@same
def exec_in_place(side):
    """The process itself executes another program."""
    with pair(side) as (server, client):
        server("s.sendall(b'first line\\n')")
        client("s.sendall(b'hello\\n')")
        client.begin("(os.dup2(s.fileno(), 0), os.dup2(s.fileno(), 1), os.execv('/bin/cat', ['cat']))")
        side.until(lambda: open(f"/proc/{client.pid}/comm").read() == "cat\n", "the other program runs")
        server("s.sendall(b'second\\n' * 1000)")
        server("s.shutdown(socket.SHUT_WR)")
        return [server("take(s, 100000)"), client.child.wait(10)]


@same
def left_by_both(side):
    """One end gives its connection to a shell. The other end passes it on to a program without the library. Bytes are
    unread in both directions."""
    with pair(side) as (server, client):
        stranger = Agent(side, "client", LD_PRELOAD="")
        server("s.sendall(pattern(0, 40000))")
        client("s.sendall(pattern(9, 50000)); s.set_inheritable(True); libc = ctypes.CDLL(None)")
        result = [client("libc.system(b'true')"), client("s.sendall(b'behind')")]
        pass_on(side, server, stranger, closes=True)
        result += [stranger("take(s, 50006)"), stranger("s.sendall(b'after')"), client("take(s, 40005)")]
        return result


@same
def forked_after_the_peer_left(side):
    """The peer takes the connection back to the kernel. A child can read what the peer had written before."""
    with pair(side) as (server, client):
        server("s.sendall(pattern(0, 500)); r, w = os.pipe(); os.write(w, pattern(4, 300)); libc = ctypes.CDLL(None)")
        server("libc.splice(r, None, s.fileno(), None, ctypes.c_size_t(300), 0)")
        client("r, w = os.pipe(); time.sleep(0.2)")
        client("pid = os.fork()\nif pid == 0:\n  os.write(w, s.recv(100) + s.recv(100)); os._exit(0)")
        return [client("os.waitpid(pid, 0)[1]"), client("os.read(r, 999)"), client("take(s, 600)")]


@same
def closed_copy_of_one_that_left(side):
    """An epoll set has a connection under a number that is closed, while a duplicate of the number lives. The set still
    reports events."""
    with pair(side) as (server, client):
        client("n = s.fileno(); e = select.epoll(); e.register(n, select.EPOLLIN); kept = s.dup()")
        client("u, v = socket.socketpair(socket.AF_UNIX); socket.send_fds(u, [b'x'], [n]); s.close(); s = kept")
        result = []
        for _ in range(3):
            server("s.sendall(b'hello')")
            result += [client("[(fd == n, bits) for fd, bits in e.poll(20)]"), client("s.recv(9)")]
        return result


@same
def number_that_came_back(side):
    """A process passes the connection to itself by SCM_RIGHTS, and closes the number that an epoll set has. The set still
    reports events."""
    with pair(side) as (server, client):
        client("n = s.fileno(); e = select.epoll(); e.register(n, select.EPOLLIN); u, v = socket.socketpair()")
        client("socket.send_fds(u, [b'x'], [n]); t = socket.recv_fds(v, 1, 1)[1][0]; s.close()")
        server("s.sendall(b'hello')")
        return [client("[(fd == n, bits) for fd, bits in e.poll(5)]"), client("os.read(t, 9)")]


# --- What a process may not have

def rounds(server, client, count):
    """Sends bytes there and back, and waits for them each time in another way."""
    result = []
    for i in range(count):
        server("os.write(s.fileno(), b'there')")
        result.append(client(("p.poll(5000)[0][1]", "[bits for _, bits in e.poll(5)]", "len(select.select([s], [s], [], 5)[0])")[i % 3]))
        result += [client("os.read(s.fileno(), 9), os.write(s.fileno(), b'back')"), server("take(s, 4)")]
    return result


@same
def without_descriptors(side):
    """When the connection begins, the process already uses as many descriptors as its limit allows."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = listener(server)
    client("e = select.epoll(); p = select.poll(); resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096)); full = []")
    client("""
try:
    while True: full.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
os.close(full.pop())
""")
    client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
    server("s = bounded(l.accept()[0])")
    client("e.register(s, select.EPOLLIN); p.register(s, select.POLLIN)")
    result = rounds(server, client, 40)
    client("[os.close(fd) for fd in full]")
    return result + rounds(server, client, 40)


FORBID = """
def forbid(numbers, action=0x00050000 | errno.EPERM):
    # struct sock_filter: the number of the system call, one jump a forbidden one, allow, refuse.
    code = [(0x20, 0, 0, 0)] + [(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]
    code += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, action)]
    held = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
    program = struct.pack('HxxxxxxP', len(code), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(38, 1, 0, 0, 0), libc.prctl(22, 2, program)
"""
SENDMSG, RECVMSG, EPOLL_CREATE1, MEMFD_CREATE = 46, 47, 291, 319  # of x86-64


@same
def with_calls_forbidden(side):
    """The process has put itself under a filter of system calls. The calls that the filter allows still work."""
    result = []
    for numbers in ([SENDMSG], [RECVMSG], [SENDMSG, RECVMSG], [EPOLL_CREATE1], [MEMFD_CREATE]):
        for confined in ("server", "client"):
            server, client = Agent(side, "server"), Agent(side, "client")
            client("e = select.epoll(); p = select.poll()")
            agent = server if confined == "server" else client
            agent(FORBID)
            result.append(agent(f"forbid({numbers})"))
            connected(server, client, shared=False)
            client("e.register(s, select.EPOLLIN); p.register(s, select.POLLIN)")
            result += rounds(server, client, 40)
    return result


OURS = [46, 47, 87, 186, 206, 263, 271, 290, 291, 302, 310, 319, 324, 434]  # what only the library would call here
GETPPID = 110
KILL_THREAD = 0


@same
def under_a_filter_that_kills(side):
    """The process makes no call that it would not make without the library. It ends as it does without the library."""
    result = []
    with pair(side) as (server, client):
        client(FORBID)
        server("s.sendall(pattern(0, 10000))")
        client("e = select.epoll(); p = select.poll(); e.register(s, select.EPOLLIN); p.register(s, select.POLLIN)")
        client("pid = os.fork()\n"
               "if pid == 0: forbid([%d], %d); os.getppid(); os._exit(1)" % (GETPPID, KILL_THREAD))
        result.append(client("os.waitpid(pid, 0)[1] & 0x7f"))
        result.append(client(f"forbid({OURS}, {KILL_THREAD})"))
        result.append(client("take(s, 10000)"))
        result += rounds(server, client, 40)
        if side.name == "local":
            check(client.shared() == [] and "syscall_filter" in side.why(), side.why())
        client.begin("s.sendall(b'last'); os._exit(7)")
        result += [server("take(s, 4)"), server("s.recv(1)"), client.child.wait(20)]
    return result


# --- libc's threads, the kernel's, and the namespaces of one thread

def through_libc(listed):
    """aio_read() and aio_write(), or lio_listio(), on a connection that has moved, with bytes unread in both directions."""
    def scenario(side):
        with pair(side) as (server, client):
            server("s.sendall(pattern(0, 10000))")
            client("s.sendall(pattern(9, 20000))")
            client(f"from kernel_io import Aio; aio = lambda *a: Aio(*a, {listed})")
            client("r = aio(Aio.READ, s.fileno(), bytes(4000)); got = r.end()")
            result = [client("got"), client("take(s, 10000 - len(got))")]
            client("r = aio(Aio.READ, s.fileno(), bytes(4000))")
            server("s.sendall(b'later')")
            result += [client("r.end()"), client("aio(Aio.WRITE, s.fileno(), b'written').end()"),
                       server("take(s, 20007)")]
            server("s.shutdown(socket.SHUT_WR)")
            return [*result, client("aio(Aio.READ, s.fileno(), bytes(9)).end()")]
    return scenario


@same
def through_aio(side):
    return through_libc(listed=False)(side)


@same
def through_lists_of_aio(side):
    return through_libc(listed=True)(side)


@same
def aio_from_both_ends(side):
    """Both ends make their first aio call while bytes of both directions lie in the shared memory. No byte may overtake
    another."""
    result = []
    for _ in range(20):
        with pair(side) as (server, client):
            for agent in (server, client):
                agent("from kernel_io import Aio; s.sendall(pattern(0, 30000))")
                agent("def write(data):\n"
                      "  while True:\n"
                      "    try: return Aio(Aio.WRITE, s.fileno(), data).end()\n"
                      "    except BlockingIOError: time.sleep(0)")
            for agent in (server, client):
                agent.begin("write(pattern(30000, 5000))")
            result += [a.end() for a in (server, client)] + [a("take(s, 35000)") for a in (server, client)]
    return result


NEW_USER, NEW_PID = 0x10000000, 0x20000000


def needs_namespaces():
    """Skips the case if this machine forbids new namespaces."""
    if subprocess.run(["unshare", "--user", "--pid", "true"], capture_output=True).returncode != 0:
        raise Skip("no user and process namespaces here")


@same
def namespaces_of_one_thread(side):
    """unshare() and setns() that the kernel refuses to a process of several threads. The connection goes on. It goes over
    the kernel once the process has a user namespace of its own, where it may not trace the other process."""
    needs_namespaces()
    with pair(side) as (server, client):
        client("libc = ctypes.CDLL(None, use_errno=True)")
        client("tried = lambda call, *a: (getattr(libc, call)(*a), ctypes.get_errno())")
        client("there = os.open('/proc/self/ns/mnt', os.O_RDONLY)")
        result = [client("tried('setns', there, 0)[0]"), *transfers(server, client)]
        result += [client(f"tried('unshare', {NEW_USER})[0]"), client(f"tried('syscall', 308, there, {NEW_USER})")]
        result += [*transfers(server, client), more_than_the_ring(server, client)]
        if side.name == "local":
            tasks = os.listdir(f"/proc/{client.pid}/task")
            names = [open(f"/proc/{client.pid}/task/{t}/comm").read().strip() for t in tasks]
            check("bypass-progress" in names, names)
            side.until(lambda: client.shared() == [], "the connection is the kernel's", 3)
        client("t = threading.Thread(target=time.sleep, args=(30,), daemon=True); t.start()")
        return [*result, client(f"tried('unshare', {NEW_USER})")]


@same
def namespaces_in_which_no_thread_is_made(side):
    """The kernel lets a process make no threads once its children will have another process namespace. The connection goes
    back to the kernel, and no later connection moves to shared memory."""
    needs_namespaces()
    with pair(side) as (server, client):
        server("s.sendall(pattern(0, 10000))")
        client("s.sendall(pattern(3, 20000))")
        client("libc = ctypes.CDLL(None, use_errno=True)")
        result = [client(f"libc.unshare({NEW_USER | NEW_PID})"), client("take(s, 10000)"), server("take(s, 20000)")]
        result.append(more_than_the_ring(server, client))
        connected(server, client, shared=False, name="t")
        for _ in range(50):
            warm(server, client, shared=False, name="t")
        if side.name == "local":
            side.until(lambda: client.shared() == [], "it is the kernel's")
        return [*result, more_than_the_ring(server, client, "t")]


@same
def namespaces_and_many_threads(side):
    """Several threads make the call at once. It is refused to each of them, and none waits for another."""
    with pair(side) as (server, client):
        client("libc, got = ctypes.CDLL(None, use_errno=True), []")
        client(f"def ask(): got.append([(libc.unshare({NEW_USER}), ctypes.get_errno()) for _ in range(200)])")
        client("all = [threading.Thread(target=ask) for _ in range(4)]; gate = threading.Event()")
        client("t = threading.Thread(target=gate.wait); t.start()")  # there is always another one
        client("[t.start() for t in all]; [t.join() for t in all]; gate.set()")
        return [client("sorted(set(sum(got, [])))"), more_than_the_ring(server, client)]


def more_than_the_ring(server, client, name="s"):
    """The reader begins when everything is written. Bytes for which the ring has no room go over the kernel."""
    for agent in (server, client):
        agent(f"{name}.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)")
    client(f"{name}.sendall(pattern(0, 1000000))")
    return server(f"take({name}, 1000000)")


def transfers(server, client):
    client("s.sendall(pattern(0, 100000))")
    server("s.sendall(pattern(9, 50000))")
    return [server("take(s, 100000)"), client("take(s, 50000)")]


def transfers_by_ring(server, client, names):
    result = []
    for name in names:
        client(f"ring.begin(Ring.READ, {name}.fileno(), bytes(100))")
        server(f"{name}.sendall(b'later')")
        result.append(client("ring.end()"))
        client(f"ring.begin(Ring.WRITE, {name}.fileno(), b'written')")
        result += [client("ring.end()"), server(f"take({name}, 7)")]
    return result


@same
def through_io_uring(side):
    """An io_uring is made after a connection has moved. Then the process makes another connection."""
    with pair(side) as (server, client):
        server("s.sendall(pattern(0, 10000))")
        client("from kernel_io import Ring; ring = Ring()")
        client("ring.begin(Ring.READ, s.fileno(), bytes(4000)); got = ring.end()")
        result = [client("got"), client("take(s, 10000 - len(got))")]
        connected(server, client, shared=False, name="t")
        result += transfers_by_ring(server, client, "st")
        for i in range(20):  # what the ring has written is before what send() writes behind it
            client("ring.begin(Ring.WRITE, s.fileno(), b'first')")
            result += [client("ring.end(), s.sendall(b'second')"), server("take(s, 11)")]
        if side.name == "local":
            side.until(lambda: client.shared() == [], "the client's connections are the kernel's")
            check("escaped_io_uring" in side.why(), side.why())
        return result


@same
def beside_rings_made_by_hand(side):
    """The program makes io_urings by system calls that the library does not see, before there is a connection."""
    server, client = Agent(side, "server"), Agent(side, "client")
    client("from kernel_io import Ring, libc_itself; ring = Ring(libc_itself)")
    connected(server, client, shared=False)
    for _ in range(50):
        warm(server, client, shared=False)
    if side.name == "local":
        check(client.shared() == [] and "escaped_io_uring" in side.why(), side.why())
    return transfers_by_ring(server, client, "s")


@same
def order_of_a_ring_and_of_sends(side):
    """A new io_uring writes at once. Its bytes keep their order with those of send()."""
    result = []
    for _ in range(10):
        with pair(side) as (server, client):
            client("from kernel_io import Ring")
            client("ring = Ring(); ring.begin(Ring.WRITE, s.fileno(), b'first'); ring.end(); s.sendall(b'second')")
            result.append(server("take(s, 11)"))
    return result


@same
def a_ring_of_a_forked_child(side):
    """A child makes an io_uring for a connection that its parent has moved."""
    with pair(side) as (server, client):
        client("r, w = os.pipe(); from kernel_io import Ring")
        client("def child():\n"
               "  ring = Ring(); ring.begin(Ring.READ, s.fileno(), bytes(9)); os.write(w, b'ready')\n"
               "  os.write(w, repr(ring.end()).encode()); os._exit(0)")
        client("pid = os.fork(); pid == 0 and child()")
        result = [client("os.read(r, 5)")]
        server("s.sendall(b'x')")
        return [*result, client("os.read(r, 100)"), client("os.waitpid(pid, 0)[1]")]


@same
def rings_that_are_refused(side):
    """A program tries to make an io_uring, and the kernel refuses. The program keeps its shared memory."""
    with pair(side) as (server, client):
        client("import kernel_io; libc = kernel_io.libc")
        result = [client("(libc.syscall(425, 8, None), ctypes.get_errno())"), *transfers(server, client)]
        if side.name == "local":
            check(client.shared() != [] and "io_uring" not in side.why(), side.why())
        return result


@case
def beside_rings_of_liburing():
    """liburing was loaded only for a module of the program, under any name."""
    with Side("local") as side, pair(side) as (server, client):
        server("s.sendall(pattern(0, 10000))")
        module = os.path.join(BUILD, "bin", "liburing_module.so")
        client("import kernel_io")
        for function in ("make_ring", "make_ring_by_a_jump"):
            made = client(f"kernel_io.make_ring_of_liburing({module!r}, {function!r})")
            check(isinstance(made, int) and made > 2, f"no ring by {function}: {made}")
        side.until(lambda: client.shared() == [], "the connection is the kernel's")
        check("escaped_io_uring" in side.why(), side.why())
        client("ring = kernel_io.Ring(kernel_io.libc_itself); ring.begin(ring.READ, s.fileno(), bytes(9000))")
        client("got = ring.end()")
        check(client("len(got) > 0 and got == pattern(0, len(got))"), client("got"))


if __name__ == "__main__":
    run_named(CASES, "passed")

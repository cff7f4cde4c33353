"""Shared memory within a host: two programs on the kernel's loopback whose bytes go through memory that both have.
What the kernel's sockets do is what must come of it.   local.py NAME...   (no name: lists them)"""
import contextlib
import ctypes
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time

from agents import Agent
from harness import HERE, LIB, LONG, Failure, Side, Skip, alive, check, free_port, run_named

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def listener(server, name="l", address="127.0.0.1", backlog=128):
    port = free_port()
    server(f"{name} = socket.socket(); {name}.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
    server(f"{name}.bind(('{address}', {port})); {name}.listen({backlog})")
    return port


def connected(server, client, shared=True, name="s", address="127.0.0.1"):
    """One connection, `name` at both; where it can be, both its directions go through shared memory by the end."""
    port = listener(server, address=address)
    client(f"{name} = bounded(socket.create_connection(('{address}', {port})))")
    server(f"{name} = bounded(l.accept()[0]); l.close()")
    warm(server, client, shared, name)
    return port


def warm(server, client, shared=True, name="s"):
    """Bytes both ways until it is paired, and once more, so that both directions have moved."""
    wanted = shared and server.side.name == "local"
    for _ in range(100):
        for one, other in ((client, server), (server, client)):
            one(f"{name}.sendall(b'warm')")
            check(other(f"take({name}, 4)") == "b:warm", "the warm-up's bytes are others")
        if not wanted or (moved(server) and moved(client)):
            return
        time.sleep(0.01)
    raise Failure(f"it did not move to shared memory: {server.sockets()} {client.sockets()} {server.side.why()}")


def moved(agent):
    return any(s["info"]["tx_bytes"] and s["info"]["rx_bytes"] for s in agent.shared())


@contextlib.contextmanager
def pair(side, shared=True, **extra):
    """A server's agent and a client's, and a connection `s` between them."""
    server, client = Agent(side, "server", **extra), Agent(side, "client", **extra)
    connected(server, client, shared)
    yield server, client


def same(scenario):
    """A case of a scenario whose result must be the kernel's."""
    def compared():
        with Side("kernel") as side:
            expected = scenario(side)
        with Side("local") as side:
            result = scenario(side)
        check(result == expected, f"the sides differ:\nkernel: {expected}\nlocal:  {result}")
    CASES[scenario.__name__] = compared
    return scenario


# --- Ends of connections

@same
def names_and_errors(side):
    """getpeername, getsockname, SO_ERROR and the like of a connection that has moved."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = connected(server, client)
    own = client("s.getsockname()[1]")
    return [client("s.getpeername()") == ["127.0.0.1", port], server("s.getsockname()") == ["127.0.0.1", port],
            server("s.getpeername()") == ["127.0.0.1", own],
            [a("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)") for a in (server, client)],
            [a("s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)") for a in (server, client)],
            client("s.connect(s.getpeername())"), client("s.listen(1)"), client("s.accept()"),
            client("s.bind(('127.0.0.1', 0))")]


@same
def refused_and_full(side):
    """Nobody listens; and a listener whose backlog is full."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = free_port()
    result = [client(f"socket.create_connection(('127.0.0.1', {port}))")]
    client("t = socket.socket(); t.setblocking(False)")
    result.append(client(f"t.connect_ex(('127.0.0.1', {port})) in (errno.EINPROGRESS, errno.ECONNREFUSED)"))
    client("p = select.poll(); p.register(t, select.POLLOUT)")
    client("got = p.poll(1000)")
    result.append(client("[[e for _, e in got], t.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]"))
    port = listener(server, backlog=1)
    client("many = [socket.socket() for _ in range(6)]")
    client("[m.setblocking(False) for m in many]")
    client(f"[m.connect_ex(('127.0.0.1', {port})) for m in many]")
    client("p = select.poll(); [p.register(m, select.POLLOUT) for m in many]; time.sleep(0.3)")
    result.append(client("sorted(e for _, e in p.poll(0))"))
    return result


HALVES = ("SHUT_WR", "SHUT_RD", "SHUT_RDWR")


def poll_bits(agent, name="s"):
    return agent(f"(lambda p: (p.register({name}, 0x2fff & ~0x20), [e for _, e in p.poll(0)])[1])(select.poll())")


# A FIN is the kernel's on both sides, and it may take its time: TCP_INFO's first byte.
ESTABLISHED = "b:\x01"
SHUT_HAS_COME = ("next('seen' for _ in range(100000) if s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1) != b'\\1' "
                 "or time.sleep(0.0001))")


@same
def shutdowns(side):
    """Each way, at either end, with bytes under way; then what the other end can still do."""
    result = []
    for how in HALVES:
        for closer in ("client", "server"):
            server, client = Agent(side, "server"), Agent(side, "client")
            connected(server, client)
            one, other = (client, server) if closer == "client" else (server, client)
            one("s.sendall(pattern(0, 20000))")
            one(f"s.shutdown(socket.{how})")
            if how != "SHUT_RD":
                check(other(SHUT_HAS_COME) == "seen", "the FIN does not come")
            row = [how, closer, poll_bits(other), other("take(s, 40000)") if how != "SHUT_RD" else other("take(s, 20000)")]
            row += [poll_bits(one), poll_bits(other)]
            row += [other("s.send(b'after')"), one("s.recv(5, socket.MSG_DONTWAIT)"), one("s.send(b'x')")]
            time.sleep(0.05)
            row += [poll_bits(one), poll_bits(other)]
            row += [other("s.send(b'again')"), other("s.recv(5, socket.MSG_DONTWAIT)"), one("s.recv(9, socket.MSG_DONTWAIT)")]
            row += [a("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)") for a in (one, other)]
            row += [a("s.shutdown(socket.SHUT_RDWR)") for a in (one, other)]
            result.append(row)
            for agent in (server, client):
                side.kill(agent.child, signal.SIGKILL)
    return result


@same
def an_end_is_seen_with_the_bytes_before_it(side):
    """Who looks at a connection right behind the other end's shutdown or close: it shows the end at once."""
    result = []
    with open(side.path("turn"), "wb") as turn:
        turn.write(b"\0")
    server, client = Agent(side, "server"), Agent(side, "client")
    for agent in (server, client):
        agent(f"f = open({turn.name!r}, 'r+b'); turn = mmap.mmap(f.fileno(), 1)")
    for end in ("s.shutdown(socket.SHUT_WR)", "s.shutdown(socket.SHUT_RDWR)", "s.close()"):
        seen = []
        for _ in range(40):
            connected(server, client)
            client("p = select.poll(); p.register(s, 0x2fff & ~0x20); p.poll(0); turn[0] = 0")
            client.begin("while not turn[0]: pass\nstate = s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1); seen = p.poll(0)")
            server(f"s.sendall(b'last'); {end}; turn[0] = 1")
            client.end()
            if client("state") != ESTABLISHED:  # else the kernel has not brought it yet
                seen.append([client("[e for _, e in seen]"), client("s.recv(9)"), client("s.recv(9)")])
            for agent in (server, client):
                agent("s.close()")
            if len(seen) == 10:
                break
        result.append([end, seen])
    return result


@same
def half_closed_and_the_other_way(side):
    """After one end's FIN some megabytes go the other way."""
    with pair(side) as (server, client):
        client("s.sendall(pattern(0, 300000)); s.shutdown(socket.SHUT_WR)")
        server("t = threading.Thread(target=lambda: (s.sendall(pattern(0, 8 << 20)), s.shutdown(socket.SHUT_WR))); t.start()")
        return [client("take(s, 9 << 20)"), server("take(s, 400000)"), server("t.join()"), poll_bits(server), poll_bits(client)]


@same
def aborts(side):
    """SO_LINGER 0, and a close with bytes unread: the peer reads what the kernel would let it read, then ECONNRESET."""
    result = []
    for who in ("client", "server"):
        for kind in ("linger", "unread", "linger and unread", "plain"):
            server, client = Agent(side, "server"), Agent(side, "client")
            connected(server, client)
            one, other = (client, server) if who == "client" else (server, client)
            if "unread" in kind:
                other("s.sendall(b'never read')")
                time.sleep(0.02)
            if "linger" in kind:
                one("s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))")
            one("s.close()")
            time.sleep(0.05)
            result.append([who, kind, poll_bits(other), other("s.recv(100)"), other("s.recv(100)"), other("s.send(b'x')"),
                           poll_bits(other)])
            time.sleep(0.05)
            result[-1] += [other("s.send(b'x')"), poll_bits(other),
                           other("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)")]
            for agent in (server, client):
                side.kill(agent.child, signal.SIGKILL)
    return result


@same
def peeks_that_wait(side):
    """MSG_PEEK with MSG_WAITALL, or below SO_RCVLOWAT: for the rest, the end, a time-out, or not at all."""
    result = []
    with pair(side) as (server, client):
        def peeked(call, *parts):
            server(f"s.sendall({parts[0]})")
            client.begin(call)
            for part in parts[1:]:
                time.sleep(0.05)
                server(part if part.startswith("s.") else f"s.sendall({part})")
            result.append(client.end())

        whole = "s.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL)"
        peeked(whole, "b'1234'", "b'567'", "b'890x'")
        peeked(whole, "b'y'")
        result.append(client("s.recv(100)"))
        peeked("s.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL | socket.MSG_DONTWAIT)", "b'12'")
        client("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 200000))")
        peeked(whole, "b'3'")
        client("bounded(s); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 6)")
        peeked("s.recv(10, socket.MSG_PEEK)", "b'4'", "b'5'", "b'67'")
        result.append(client("s.recv(100)"))
        peeked("s.recv(100000, socket.MSG_PEEK | socket.MSG_WAITALL)", "pattern(0, 60000)", "pattern(60000, 40000)")
        result.append(client("take(s, 100000)"))
        peeked(whole, "b'end'", "s.shutdown(socket.SHUT_WR)")
        result += [client("s.recv(100)"), client(whole)]
    return result


@same
def bytes_before_a_close(side):
    """Closed right behind the last byte: the peer reads them all, and then the end."""
    result = []
    for size in (1, 5000, 200_000, 700_000):
        with pair(side) as (server, client):
            client(f"s.sendall(pattern(0, {size})); s.close()")
            time.sleep(0.02)
            result.append([server(f"take(s, {size} + 1)"), server("s.recv(1)"), poll_bits(server)])
    return result


ANSWERS = r"""
def answer():
    def one(c):
        for _ in range(c.recv(1)[0]):
            take(c, 50)
            c.sendall(pattern(0, 5000))
        c.close()
    while True:
        try: c = bounded(l.accept()[0])
        except OSError: return
        threading.Thread(target=one, args=(c,), daemon=True).start()
def ask(port, seed):
    r, wrong = random.Random(seed), []
    def one():
        for _ in range(60):
            try:
                with bounded(socket.create_connection(('127.0.0.1', port))) as c:
                    questions = r.choice((1, 2, 5, 20))
                    c.send(bytes([questions]))
                    for _ in range(questions):
                        c.send(b'x' * 50)
                        if take(c, 5000) != pattern(0, 5000): wrong.append('other bytes')
                    if c.recv(1): wrong.append('no end')
            except OSError as e: wrong.append(errno.errorcode[e.errno])
    threads = [threading.Thread(target=one) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    return wrong
"""


@same
def short_connections_of_many_threads(side):
    """Some questions and answers each, and the end behind the last answer, while they look for each other and move."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = listener(server)
    for agent in (server, client):
        agent(ANSWERS)
    server("threading.Thread(target=answer, daemon=True).start()")
    result = client(f"ask({port}, {random.randrange(1000)})", timeout=120)
    if side.name == "local":
        until_counted(server, 20)
    return result


@same
def lingering_close(side):
    """SO_LINGER with time: close() waits for the peer's acknowledgements, not for its program."""
    with pair(side) as (server, client):
        client("s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 2))")
        client("s.sendall(pattern(0, 50000)); t0 = time.monotonic(); s.close()")
        quick = client("time.monotonic() - t0 < 1")
        return [quick, server("take(s, 60000)")]


# --- What only the kernel can do, in the middle

@same
def urgent_data(side):
    with pair(side) as (server, client):
        client("s.sendall(pattern(0, 1000))")
        result = [client("s.send(b'ab!', socket.MSG_OOB)")]
        client("s.sendall(pattern(1000, 1000))")
        time.sleep(0.05)
        result.append(poll_bits(server))
        result.append(server("s.recv(1, socket.MSG_OOB)"))
        result += [server("take(s, 2002)"), server("queued(s)"), server("s.recv(9, socket.MSG_DONTWAIT)")]
        server("s.sendall(b'back')")
        result.append(client("take(s, 4)"))
        return result


@same
def options_of_the_kernel(side):
    """SO_ZEROCOPY, TCP_ULP and the like while bytes of both directions lie unread."""
    result = []
    for option in ("socket.SOL_SOCKET, 60, 1", "6, 31, b'tls'", "6, socket.TCP_CORK, 1", "6, 23, 5"):
        with pair(side) as (server, client):
            client("s.sendall(pattern(0, 30000))")
            server("s.sendall(pattern(7, 20000))")
            result.append(client(f"s.setsockopt({option})"))
            client("s.sendall(pattern(30000, 30000))")
            server("s.sendall(pattern(20007, 20000))")
            if "CORK" in option:
                client("s.setsockopt(6, socket.TCP_CORK, 0)")
            result += [client("take(s, 40000)"), server("take(s, 60000)")]
            for agent in (server, client):
                agent("s.shutdown(socket.SHUT_WR)")
            result += [a("s.recv(1)") for a in (server, client)]
    return result


@same
def splices(side):
    """splice() out of and into a connection that has moved."""
    with pair(side) as (server, client):
        server("s.sendall(pattern(0, 10000))")
        client("r, w = os.pipe()")
        client("libc = ctypes.CDLL(None, use_errno=True)")
        client("spl = lambda i, o, n: (libc.splice(i, None, o, None, ctypes.c_size_t(n), 0), ctypes.get_errno())[0]")
        result = [client("[spl(s.fileno(), w, 4000), os.read(r, 5000)]")]
        client("os.write(w, pattern(3, 3000))")
        result += [client("spl(r, s.fileno(), 3000)"), server("take(s, 3000)"), client("take(s, 6000)")]
        return result


@same
def passed_on(side):
    """By SCM_RIGHTS to a program of no library, with bytes unread both ways; then both ends go on."""
    with pair(side) as (server, client):
        stranger = Agent(side, "client", LD_PRELOAD="")
        client("s.sendall(pattern(0, 40000))")
        server("s.sendall(pattern(9, 50000))")
        name = "\\0" + os.path.basename(side.dir)
        stranger(f"u = socket.socket(socket.AF_UNIX); u.bind('{name}'); u.listen(1)")
        client(f"u = socket.socket(socket.AF_UNIX); u.connect('{name}')")
        stranger("u = u.accept()[0]")
        client("socket.send_fds(u, [b'x'], [s.fileno()])")
        stranger("s = bounded(socket.socket(fileno=socket.recv_fds(u, 1, 1)[1][0]))")
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
    """The same, between programs that both have the library."""
    with pair(side) as (server, client):
        other = Agent(side, "client")
        client("s.sendall(pattern(0, 40000))")
        server("s.sendall(pattern(9, 50000))")
        name = "\\0" + os.path.basename(side.dir)
        other(f"u = socket.socket(socket.AF_UNIX); u.bind('{name}'); u.listen(1)")
        client(f"u = socket.socket(socket.AF_UNIX); u.connect('{name}')")
        other("u = u.accept()[0]")
        client("socket.send_fds(u, [b'x'], [s.fileno()])")
        client("s.close()")
        other("s = bounded(socket.socket(fileno=socket.recv_fds(u, 1, 1)[1][0]))")
        result = [other("take(s, 50000)"), other("s.sendall(pattern(40000, 1000))"), server("take(s, 41000)")]
        for _ in range(20):
            other("s.sendall(b'ping')")
            result.append(server("take(s, 4)"))
            server("s.sendall(b'pong')")
            result.append(other("take(s, 4)"))
        other("s.close()")
        return [*result, server("s.recv(1)")]


SPAWN = {
    "fork": "child = subprocess.Popen(['/bin/cat'], stdin=s, stdout=s, env=env, preexec_fn=lambda: None)",
    "vfork": "child = subprocess.Popen(['/bin/cat'], stdin=s, stdout=s, env=env)",
    "posix_spawn": "child = os.posix_spawn('/bin/cat', ['cat'], env, "
                   "file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), n) for n in (0, 1)])",
}


def standard_input_after(how, loaded):
    """The connection as another program's input and output, with bytes of both ways unread."""
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
    """The process itself becomes another program."""
    with pair(side) as (server, client):
        server("s.sendall(b'first line\\n')")
        client("s.sendall(b'hello\\n')")
        client.begin("(os.dup2(s.fileno(), 0), os.dup2(s.fileno(), 1), os.execv('/bin/cat', ['cat']))")
        side.until(lambda: open(f"/proc/{client.pid}/comm").read() == "cat\n", "the other program runs")
        server("s.sendall(b'second\\n' * 1000)")
        server("s.shutdown(socket.SHUT_WR)")
        return [server("take(s, 100000)"), client.child.wait(10)]

# --- Who shares it, and how much it holds

@same
def forked_child_uses_it_too(side):
    """Parent and child read and write one connection in turn."""
    result = []
    with pair(side) as (server, client):
        client("""
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    while True:
        told = os.read(r, 1)
        if told == b's': s.sendall(b'child')
        if told == b'r': os.write(w2, take(s, 6))
        if told in (b'', b'q'): os._exit(0)
""")
        for i in range(30):
            server("s.sendall(b'second')")
            client("os.write(w, b'r')")
            result.append(client("os.read(r2, 6)"))
            client("os.write(w, b's')")
            result.append(server("take(s, 5)"))
            server("s.sendall(b'first')")
            result.append(client("take(s, 5)"))
            client("s.sendall(b'parent')")
            result.append(server("take(s, 6)"))
        server("s.sendall(pattern(0, 1000000))", timeout=40)
        client("os.write(w, b'r')")
        result.append(client("os.read(r2, 6)"))
        result.append(client("take(s, 1000000 - 6)"))
        client("s.close(); os.write(w, b's')")
        result.append(server("take(s, 5)"))
        client("os.write(w, b'q'); os.wait()")
        result.append(server("s.recv(1)"))
    return result


@same
def threads_of_one_socket(side):
    """Eight write and eight read one connection: every record arrives once, and whole where the kernel's is."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent("""
def writer(n):
    for i in range(400):
        s.sendall(bytes([n]) * 64)
got = [0] * 256; lock = threading.Lock()
def reader():
    while True:
        part = s.recv(640)
        if not part: return
        with lock:
            for n in range(8): got[n] += part.count(bytes([n]))
threads = [threading.Thread(target=writer, args=(n,)) for n in range(8)] + [threading.Thread(target=reader) for _ in range(8)]
[t.start() for t in threads]
""")
        for agent in (server, client):
            agent("[t.join() for t in threads[:8]]")
        for agent in (server, client):
            agent("s.shutdown(socket.SHUT_WR)")
        for agent in (server, client):
            agent("[t.join() for t in threads]")
        return [a("got[:8]") for a in (server, client)]


def filled(side, chunk):
    """How much a writer finds room for when nobody reads; one way, and then the other."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent(f"""
def fill():
    total, p, data = 0, select.poll(), b'x' * {chunk}
    p.register(s, select.POLLOUT); s.setblocking(False)
    while p.poll(1500):
        try: total += s.send(data)
        except BlockingIOError: pass
    return total
""")
        return [agent("fill()") for agent in (client, server)]


@case
def holds_what_the_kernel_holds():
    """Two programs that send to each other before either reads get as far as with the kernel's buffers."""
    found = {}
    for name in ("kernel", "local"):
        with Side(name) as side:
            found[name] = [filled(side, chunk) for chunk in ((1000, 65536, 1 << 20) if LONG else (65536,))]
    check(all(l >= k for ours, kernels in zip(found["local"], found["kernel"]) for l, k in zip(ours, kernels)),
          f"bytes that find room without a reader: {found}")


@same
def refilled_after_a_full_ring(side):
    """A writer that waits for room, by poll, epoll and in send(), goes on when the reader has made some."""
    result = []
    for wait in ("select.select([], [s], [], 20)", "(lambda p: (p.register(s, select.POLLOUT), p.poll(20000)))(select.poll())",
                 "(lambda e: (e.register(s, select.EPOLLOUT | select.EPOLLET), e.poll(20), e.close()))(select.epoll())",
                 None):
        with pair(side) as (server, client):
            client(f"""
def write():
    if {wait is None}:
        return s.sendall(pattern(0, 20 << 20))
    data = memoryview(pattern(0, 20 << 20)); s.setblocking(False)
    while data:
        try: data = data[s.send(data):]
        except BlockingIOError: {wait}
t = threading.Thread(target=write); t.start()
""")
            time.sleep(0.1)
            result += [server("take(s, 20 << 20)"), client("(t.join(20), t.is_alive())[1]")]
    return result


@same
def readers_that_stay_away(side):
    """Both ends write without a pause, and read with many: a full ring is left and taken again, often, both ways."""
    result = []
    with pair(side) as (server, client):
        for agent in (server, client):
            agent("""
heard = []
def write():
    at = 0
    while at < 40 << 20:
        n = random.choice((1, 5000, 70000, 900000)); s.sendall(pattern(at, n)); at += n
    s.shutdown(socket.SHUT_WR)
def read():
    at = 0
    while part := s.recv(random.choice((100, 5000, 300000))):
        if part != pattern(at, len(part)): heard.append(f'other bytes at {at}'); break
        at += len(part)
        if random.random() < 0.02: time.sleep(random.random() * 0.05)
    heard.append(at >= 40 << 20)
threads = [threading.Thread(target=t) for t in (read, write)]
[t.start() for t in threads]
""")
        for agent in (server, client):
            result.append(agent("([t.join(100) for t in threads], heard)[1]", timeout=110))
    return result


@same
def polls_that_always_find_something(side):
    """A poll that never waits, for another of its sockets is writable all the time, sees what comes, whichever way."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = listener(server)
    for name in ("w", "s"):
        client(f"{name} = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server(f"{name} = bounded(l.accept()[0])")
    client("""
def reads(n):
    read = 0; deadline = time.monotonic() + 20
    while read < n and time.monotonic() < deadline:
        if select.select([s], [w], [])[0]: read += len(s.recv(min(n - read, 100000)))
    return read
""")
    result = []
    for _ in range(100):  # until it has moved
        client.begin("reads(4)")
        time.sleep(0.3)  # longer than anything of the client's but its polls looks away
        server("s.sendall(b'more')")
        result.append(client.end() == 4)
        server("s.setblocking(False)")
        client("s.sendall(b'some')")
        server("(select.select([s], [], [], 20), s.recv(4), s.setblocking(True))[0][0] == [s]")
        if side.name != "local" or (moved(server) and moved(client)):
            break
    server("t = threading.Thread(target=lambda: s.sendall(pattern(0, 20 << 20))); t.start()")
    time.sleep(0.1)  # its ring is full, and it goes on over the kernel
    result.append(client("reads(20 << 20)"))
    server("t.join(20)")
    return [all(result[:-1]), result[-1], len(result) < 100]


@same
def both_send_first(side):
    """Each writes 300 KB in one blocking call before it reads."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent.begin("s.sendall(pattern(0, 300000))")
        return [agent.end() for agent in (server, client)] + [a("take(s, 300000)") for a in (server, client)]


@same
def many_at_once(side):
    """1,000 connections: all are used, read by epoll, and closed."""
    server, client = Agent(side, "server"), Agent(side, "client")
    for agent in (server, client):
        agent("resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)")
    port = listener(server, backlog=2000)
    client(f"many = [socket.create_connection(('127.0.0.1', {port})) for _ in range(1000)]", timeout=100)
    server("many = [bounded(l.accept()[0]) for _ in range(1000)]", timeout=100)
    client("[bounded(m) for m in many]")
    for agent in (server, client):
        agent("e = select.epoll(); [e.register(m, select.EPOLLIN) for m in many]")
        agent("""
def answered():
    left = {m.fileno(): m for m in many}
    while left:
        ready = e.poll(20)
        if not ready: return len(left)
        for fd, _ in ready:
            m = left.pop(fd, None)
            if m is None: continue
            if m.recv(100) != b'x' * 100: return 'other bytes'
    return 0
""")
    result = []
    for _ in range(5):
        for one, other in ((client, server), (server, client)):
            one("[m.sendall(b'x' * 100) for m in many]", timeout=60)
            result.append(other("answered()", timeout=60))
    if side.name == "local":
        until_counted(server, 500)
    client("[m.close() for m in many]", timeout=60)
    result.append(server("sum(m.recv(1) == b'' for m in many)", timeout=60))
    server("[m.close() for m in many]", timeout=60)
    result += [memory_mapped(a) for a in (server, client)]
    return result


def memory_mapped(agent):
    """Mappings and descriptors of shared memory that a process has."""
    maps = open(f"/proc/{agent.pid}/maps").read().count("bypass-connection")
    numbers = 0
    for fd in os.listdir(f"/proc/{agent.pid}/fd"):
        with contextlib.suppress(OSError):
            numbers += "bypass-connection" in os.readlink(f"/proc/{agent.pid}/fd/{fd}")
    return [maps, numbers]


# --- Death

FLOWS = r"""
def base(i, mine): return (i * 2 + (mine == 'server')) << 40
def send_flow(s, i, seed):
    r = random.Random(seed + i); at = base(i, role)
    try:
        while True:
            n = r.choice((1, 100, 4000, 70000, 300000))
            s.sendall(pattern(at, n)); at += n
    except OSError: pass
verdicts = {}
def other_bytes(part, at):
    right = next(n for n, (a, b) in enumerate(zip(part, pattern(at, len(part)))) if a != b)
    word = part[right + -(at + right) % 8:][:8]  # the next whole one
    came = (int.from_bytes(word, 'little') * 8 - -(at + right) % 8 if len(word) == 8 else 0) - (at - (at & (1 << 40) - 1))
    return f'other bytes at {(at & (1 << 40) - 1) + right}: those of {came}'
def receive_flow(s, i, seed):
    r = random.Random(seed * 31 + i); at = base(i, 'server' if role == 'client' else 'client')
    try:
        while True:
            part = s.recv(r.choice((1, 777, 65536, 1000000)))
            if not part: end = 'ended'; break
            if part != pattern(at, len(part)): end = other_bytes(part, at); break
            at += len(part)
    except OSError as e: end = 'ended' if e.errno in (errno.ECONNRESET, errno.EPIPE) else str(e)
    verdicts[i] = end
def flows(sockets, seed):
    verdicts.clear()
    made = [threading.Thread(target=f, args=(bounded(s), i, seed), daemon=True)
            for i, s in enumerate(sockets) for f in (send_flow, receive_flow)]
    [t.start() for t in made]
    return made
def ended():
    [t.join(20) for t in running]
    stuck = sum(t.is_alive() for t in running)
    [s.close() for s in many]
    return [sorted(set(verdicts.values())), len(verdicts), stuck]
"""


def killed_in_the_middle(victim, rounds):
    """One of both is killed while 16 connections carry bytes both ways; the other sees ends, and no byte that was not
    sent or came twice; and what both had of memory is free."""
    with Side("local") as side:
        survivor_role = "server" if victim == "client" else "client"

        def agent(role):
            made = Agent(side, role)
            made(FLOWS)
            made(f"role = '{role}'")
            return made
        survivor = agent(survivor_role)
        used = 0
        for round_number in range(rounds):
            other = agent(victim)
            server, client = (survivor, other) if survivor_role == "server" else (other, survivor)
            port = listener(server)
            client(f"many = [socket.create_connection(('127.0.0.1', {port})) for _ in range(16)]")
            server("many = [l.accept()[0] for _ in range(16)]; l.close()")
            # By their order: a connection's two ends have one number.
            client("[m.sendall(bytes([i])) for i, m in enumerate(many)]")
            server("many.sort(key=lambda m: m.recv(1))")
            for one in (server, client):
                one(f"running = flows(many, {round_number})")
            time.sleep(0.03 * (round_number % 16))
            kill(other)
            verdict = survivor("ended()", timeout=90)
            check(verdict == [["ended"], 16, 0], f"round {round_number}: {verdict}")
            side.until(lambda: memory_mapped(survivor) == [0, 0], f"memory is free: {memory_mapped(survivor)}", 10)
        until_counted(survivor, 1)


def kill(agent):
    os.kill(agent.pid, signal.SIGKILL)
    agent.child.wait()


@case
def client_killed():
    killed_in_the_middle("client", 100 if LONG else 5)


@case
def server_killed():
    killed_in_the_middle("server", 100 if LONG else 5)


# --- Anything, in any order

class Script:
    """Random operations of two ends, which never wait: what each direction holds is known."""
    MOST = 50_000  # bytes unread, so that the kernel's buffers take them, too

    def __init__(self, seed, moves_midway):
        self.random = random.Random(seed)
        self.unread = [0, 0]  # towards each end
        self.sent = [0, 0]  # by each end
        self.low_water = [1, 1]
        self.moves_midway = moves_midway
        self.shut = [False, False]

    def operations(self, count):
        for _ in range(count):
            end = self.random.randrange(2)
            made = self.random.choice((self.send, self.send, self.receive, self.receive, self.receive, self.ask, self.ask))(end)
            if made:
                yield end, made
        for end in (0, 1):
            yield end, "s.shutdown(socket.SHUT_WR)"
        for end in (0, 1):
            yield end, f"take(s, {self.unread[end] + 10})"
            yield end, "[e.poll(0) != [] for e in (level,)]"

    def send(self, end):
        room = self.MOST - self.unread[1 - end]
        n = min(room, self.random.choice((1, 2, 7, 100, 1460, 5000, 20000)))
        if n <= 0:
            return None
        at = self.sent[end]
        self.sent[end] += n
        self.unread[1 - end] += n
        data = f"pattern({at}, {n})"
        cut = self.random.randrange(n + 1)
        parts = f"[pattern({at}, {cut}), b'', pattern({at} + {cut}, {n} - {cut})]"
        return self.random.choice((
            f"s.send({data})", f"s.sendall({data})", f"os.write(s.fileno(), {data})", f"os.writev(s.fileno(), {parts})",
            f"s.sendmsg({parts})", f"s.send({data}, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)",
            f"os.sendfile(s.fileno(), file({data}), 0, {n})", f"os.sendfile(s.fileno(), file({data}), None, {n})"))

    def receive(self, end):
        there = self.unread[end]
        n = self.random.choice((1, 3, 100, 1000, 8192, 60000))
        if there < self.low_water[end]:
            return "s.recv(10, socket.MSG_DONTWAIT)" if there == 0 else None
        least = min(n, there)
        kind = self.random.choice(("recv", "peek", "wait", "trunc", "readv", "recvmsg", "peek all", "read", "into"))
        if kind in ("peek", "peek all"):
            flag = " | socket.MSG_WAITALL" if kind == "peek all" and n <= there and not self.moves_midway else ""
            return f"s.recv({n}, socket.MSG_PEEK{flag})"
        self.unread[end] -= least
        if kind == "wait":
            return f"s.recv({least}, socket.MSG_WAITALL)"
        return {"recv": f"s.recv({n}, {self.random.choice(('0', 'socket.MSG_DONTWAIT'))})", "read": f"os.read(s.fileno(), {n})",
                "trunc": f"s.recv_into(bytearray({n}), {n}, socket.MSG_TRUNC)", "into": f"into({n})",
                "readv": f"readv({n // 3}, {n - n // 3})", "recvmsg": f"gather({n})"
                }[kind]

    def ask(self, end):
        if self.moves_midway:
            wait = 5000 if self.unread[end] else 0  # what has moved is heard of a little later
            return self.random.choice(("queued(s) > 0", f"readable({wait})", f"[e & 1 for _, e in level.poll({wait / 1000})]"))
        what = self.random.choice(("queued", "ready", "level", "edge", "once", "again", "low"))
        if what == "low":
            self.low_water[end] = self.random.choice((1, 1, 50))
            return f"s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, {self.low_water[end]})"
        return {"queued": "queued(s)", "ready": "ready()", "level": "[e for _, e in level.poll(0)]",
                "edge": "[e for _, e in edge.poll(0)]", "once": "[e for _, e in once.poll(0)]",
                "again": "once.modify(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)"}[what]


TOOLS = r"""
import tempfile
level = select.epoll(); level.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
edge = select.epoll(); edge.register(s, select.EPOLLIN | select.EPOLLET)
once = select.epoll(); once.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
kept = tempfile.TemporaryFile()
def file(data):
    kept.seek(0); kept.truncate(); kept.write(data); kept.flush(); kept.seek(0)
    return kept.fileno()
def into(n):
    room = bytearray(n); got = s.recv_into(room); return bytes(room[:got])
def gather(n):
    rooms = [bytearray(n // 2), bytearray(n - n // 2)]; got, control, flags, name = s.recvmsg_into(rooms)
    return [b"".join(rooms)[:got], control, flags]
def readv(*sizes):
    rooms = [bytearray(n) for n in sizes]; got = os.readv(s.fileno(), rooms); return b''.join(rooms)[:got]
def readable(wait):
    p = select.poll(); p.register(s, select.POLLIN); return [e for _, e in p.poll(wait)]
def ready():
    p = select.poll(); p.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    return [[e for _, e in p.poll(0)], [len(x) for x in select.select([s], [s], [s], 0)]]
"""


def run_script(side, seed, moves_midway):
    server, client = Agent(side, "server"), Agent(side, "client")
    port = listener(server)
    client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
    server("s = bounded(l.accept()[0])")
    for agent in (server, client):
        agent("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)")  # what is sent is there
    if not moves_midway:
        warm(server, client)
    result = []
    for agent in (server, client):
        agent(TOOLS)
    for end, source in Script(seed, moves_midway).operations(400):
        result.append((end, source, (server, client)[end](source)))
    if moves_midway and side.name == "local":
        side.until(lambda: moved(server) and moved(client), f"seed {seed}: it moves, {side.why()}", 10)
    for agent in (server, client):
        side.kill(agent.child, signal.SIGKILL)
    return result


def random_operations(moves_midway, seeds):
    with Side("kernel") as kernel, Side("local") as local:
        for seed in seeds:
            expected, got = run_script(kernel, seed, moves_midway), run_script(local, seed, moves_midway)
            for i, (want, have) in enumerate(zip(expected, got)):
                if want == have:
                    continue
                if "edge.poll" in want[1] and not want[2]:
                    continue  # one edge too many does no harm
                raise Failure(f"seed {seed}, operation {i}, kernel {want}, local {have}, before it: {got[max(0, i - 12):i]}")


def seeds(count):
    given = os.environ.get("BYPASS_TEST_SEED")
    first = int(given) if given else random.SystemRandom().randrange(1 << 30)
    print(f"BYPASS_TEST_SEED={first}", flush=True)
    return range(first, first + (1 if given else count))


@case
def random_operations_in_memory(): random_operations(False, seeds(60 if LONG else 4))


@case
def random_operations_while_it_moves(): random_operations(True, seeds(60 if LONG else 4))


# --- With whom, and where

ECHO = r"""
def echo():
    while True:
        try: c = l.accept()[0]
        except OSError: return
        def serve(c=c):
            while data := c.recv(65536): c.sendall(data)
            c.close()
        threading.Thread(target=serve, daemon=True).start()
threading.Thread(target=echo, daemon=True).start()
"""
ASK = r"""
def ask(port, rounds=50):
    with socket.create_connection(('127.0.0.1', port)) as c:
        bounded(c)
        for i in range(rounds):
            c.sendall(pattern(i * 5000, 5000))
            if take(c, 5000) != pattern(i * 5000, 5000): return 'other bytes'
            time.sleep(0.002)
        last.clear(); last.append(c.dup())
    return 'ok'
last = []
"""


def asked(server, client, port):
    """What an echo server answered, and whether any of it went through shared memory."""
    client(ASK)
    verdict = client(f"ask({port})", timeout=60)
    check(verdict == "ok", verdict)


def shared_ever(agent):
    return agent.side.stat(agent.child)["counters"].get("local_shared", 0)


def until_counted(agent, count):
    return agent.side.until(lambda: shared_ever(agent) >= count, f"{count} connections had shared memory: "
                            f"{agent.side.why()}", 5)


def never_counted(agent):
    time.sleep(0.5)  # what is published lags
    check(shared_ever(agent) == 0, "a connection had shared memory that must not")


@case
def kernel_clients_and_ours_at_once():
    """One listener, and eight clients of both kinds at the same time."""
    with Side("local") as side:
        server = Agent(side, "server")
        port = listener(server)
        server(ECHO)
        clients = [Agent(side, "client", **({"LD_PRELOAD": ""} if i % 2 else {})) for i in range(8)]
        for client in clients:
            client(ASK)
            client.begin(f"ask({port}, 300)")
        check([c.end(90) for c in clients] == ["ok"] * 8, "an echo was wrong")
        until_counted(server, 4)
        for client in clients[::2]:
            until_counted(client, 1)


def one_side_is_not_ours(**ours):
    """`ours`: the environment of the server or the client, by role."""
    with Side("local") as side:
        server, client = (Agent(side, role, **ours.get(role, {})) for role in ("server", "client"))
        port = listener(server)
        server(ECHO)
        asked(server, client, port)
        for role, agent in (("server", server), ("client", client)):
            if not ours.get(role):
                never_counted(agent)


@case
def plain_client(): one_side_is_not_ours(client={"LD_PRELOAD": ""})


@case
def plain_server(): one_side_is_not_ours(server={"LD_PRELOAD": ""})


@case
def client_with_local_off(): one_side_is_not_ours(client={"BYPASS_LOCAL": "off"})


@case
def server_with_local_off(): one_side_is_not_ours(server={"BYPASS_LOCAL": "off"})


@case
def a_rule_gives_it_to_the_kernel():
    for role in ("client", "server"):
        rule = "kernel tcp connect 127.0.0.1:*" if role == "client" else "kernel tcp * 127.0.0.0/8"
        with Side("local") as side:
            agents = {r: Agent(side, r, **({"BYPASS_RULES": rule} if r == role else {})) for r in ("server", "client")}
            port = listener(agents["server"])
            agents["server"](ECHO)
            asked(agents["server"], agents["client"], port)
            never_counted(agents[role])
            never_counted(agents["client" if role == "server" else "server"])


def needs_root():
    if os.geteuid() != 0:
        raise Skip("it takes root")


@case
def another_user():
    """Who may not trace the other shares no memory with him, even where both can write the run directory."""
    needs_root()
    for other in ("client", "server"):
        with Side("local") as side:
            os.chmod(side.dir, 0o777)
            library = side.path("libbypass.so")
            shutil.copy(LIB, library)
            under = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
            os.mkdir(side.path("theirs"))
            os.chown(side.path("theirs"), 65534, 65534)
            agents = {r: Agent(side, r, under if r == other else (), LD_PRELOAD=library,
                               **({"BYPASS_RUN_DIR": side.path("theirs")} if r == other else {})) for r in ("server", "client")}
            port = listener(agents["server"])
            agents["server"](ECHO)
            asked(agents["server"], agents["client"], port)
            never_counted(agents["client" if other == "server" else "server"])


@case
def network_namespaces():
    """Both in one of their own share memory; one beside it with the same ports is no other end."""
    needs_root()
    with Side("local") as side:
        inside = ("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
        server = Agent(side, "server", inside)
        server("0")
        client = Agent(side, "client", ("nsenter", "-t", str(server.pid), "-n"))
        port = connected(server, client)
        server(f"l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        server(f"l.bind(('127.0.0.1', {port})); l.listen()")
        outside, plain = Agent(side, "client"), Agent(side, "server", LD_PRELOAD="")
        plain(f"l = socket.socket(); l.bind(('127.0.0.1', {port})); l.listen()")
        plain(ECHO)
        asked(plain, outside, port)
        never_counted(outside)


@case
def other_families():
    """IPv6's loopback, an IPv6 socket to an IPv4 address, and an address of this host that is not 127.0.0.1."""
    with Side("local") as side:
        for family, bound, target in (("AF_INET6", "::1", "::1"), ("AF_INET6", "::", "::1"), ("AF_INET6", "::", "127.0.0.1"),
                                      ("AF_INET6", "::ffff:127.0.0.1", "::ffff:127.0.0.1"), ("AF_INET", "0.0.0.0", "127.0.0.1"),
                                      ("AF_INET", "127.0.0.7", "127.0.0.7"), ("AF_INET", "0.0.0.0", "127.3.2.1")):
            server, client = Agent(side, "server"), Agent(side, "client")
            port = free_port()
            server(f"l = socket.socket(socket.{family}); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            server(f"l.bind(('{bound}', {port})); l.listen()")
            to = "AF_INET6" if ":" in target else "AF_INET"
            client(f"s = bounded(socket.socket(socket.{to})); s.connect(('{target}', {port}))")
            server("s = bounded(l.accept()[0])")
            try:
                warm(server, client)
            except Failure as why:
                raise Failure(f"{bound} {target}: {why}") from None


# --- Attackers and want

SQUATTER = r"""
def squat(name, behaviour):
    "Has the name of a connection to come; whoever comes to it meets `behaviour`."
    u = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    u.bind('\0' + name)
    kept.append(u)
    if behaviour == 'deaf': return
    u.listen(16)
    def serve():
        while True:
            c = u.accept()[0]; kept.append(c)
            if behaviour == 'garbage':
                try: c.send(os.urandom(64))
                except OSError: pass
            if behaviour == 'closes': c.close()
    if behaviour != 'silent': threading.Thread(target=serve, daemon=True).start()
kept = []
"""


def meeting_name(client, port, own):
    """As src/fastpath/shm/rendezvous.cc makes it, seen in /proc/net/unix while one waits there."""
    network = client("struct.unpack('Q', socket.socket().getsockopt(socket.SOL_SOCKET, 71, 8))[0]")
    ends = sorted((port, own))
    address = "00000000000000000000ffff7f000001"
    return f"bypass-{network:016x}-" + "-".join(f"{address}.{p:04x}" for p in ends)


@case
def squatted_names():
    """A process of the same user has the name before both ends: all goes on over the kernel."""
    with Side("local") as side:
        for behaviour in ("deaf", "silent", "garbage", "closes") if LONG else ("silent", "garbage"):
            attacker = Agent(side, "server", LD_PRELOAD="")
            attacker(SQUATTER)
            server, client = Agent(side, "server"), Agent(side, "client")
            port, own = listener(server), free_port()
            attacker(f"squat({meeting_name(client, port, own)!r}, '{behaviour}')")
            client("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            client(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
            server("s = bounded(l.accept()[0]); l.close()")
            for i in range(60):
                for one, other in ((client, server), (server, client)):
                    one(f"s.sendall(pattern({i} * 1000, 1000))")
                    check(other("take(s, 1000)") == one(f"pattern({i} * 1000, 1000)"), "other bytes")
                time.sleep(0.03)
            for agent in (server, client):
                never_counted(agent)
            check("shared memory" in side.why() or "shared_memory" in side.why(), f"{behaviour}: no reason is given: {side.why()}")


@case
def squatters_of_a_real_name_are_seen():
    """The name that squatted_names() makes is the one that libbypass uses."""
    with Side("local") as side:
        server, client, marked = Agent(side, "server", LD_PRELOAD=""), Agent(side, "client"), Agent(side, "server")
        port, own = listener(marked), free_port()  # one of ours listens there, and then somebody else does
        marked("l.close()")
        server("l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        server(f"l.bind(('127.0.0.1', {port})); l.listen()")
        client("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        client(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
        client("s.sendall(b'x')")
        name = meeting_name(client, port, own)
        side.until(lambda: f"@{name}" in open("/proc/net/unix").read(), f"@{name} in /proc/net/unix", 3)


def starved(prepare, role, under=(), says=True, never=True):
    """One end has no room for what shared memory takes: bytes go on over the kernel, and why is said."""
    with Side("local") as side:
        agents = {r: Agent(side, r, under if r == role else ()) for r in ("server", "client")}
        server, client = agents["server"], agents["client"]
        port = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0]); l.close()")
        if prepare:
            agents[role](prepare)

        def talk(i):
            for one, other in ((client, server), (server, client)):
                one(f"s.sendall(pattern({i} * 1000, 1000))")
                check(other("take(s, 1000)") == one(f"pattern({i} * 1000, 1000)"), "other bytes")
        for i in range(40):
            talk(i)
            time.sleep(0.02)
        if says:  # the ends try when they are called: on a busy machine that takes more calls
            side.until(lambda: "memory" in side.why() or talk(0), f"a reason is given: {side.why()}")
        if never:
            never_counted(agents["client" if role == "server" else "server"])


@case
def no_descriptors():
    for role in ("client", "server"):
        starved("resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, 4096))", role)


@case
def no_address_space():
    for role in ("client", "server"):
        starved("resource.setrlimit(resource.RLIMIT_AS, (int(open('/proc/self/statm').read().split()[0]) * 4096 + (1 << 19),) * 2)", role)


@case
def small_files_only():
    """RLIMIT_FSIZE: no signal, and the kernel's connection."""
    for role in ("client", "server"):
        starved(None, role, ("prlimit", "--fsize=65536"), says=False)
        starved("resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))", role, says=False, never=False)  # the other end may make it


@case
def full_run_directory():
    """A run directory without room: no signal, no statistics, and the kernel's connection."""
    needs_root()
    with Side("local") as side:
        os.mkdir(side.path("run"), 0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", side.path("run")], check=True)
        try:
            with open(side.path("run/filler"), "wb") as file, contextlib.suppress(OSError):
                file.write(b"x" * (1 << 20))
            server, client = Agent(side, "server"), Agent(side, "client")
            port = listener(server)
            server(ECHO)
            asked(server, client, port)
        finally:
            for child in side.children:
                side.kill(child, signal.SIGKILL)
            subprocess.run(["umount", "-l", side.path("run")], check=True)


@case
def no_run_directory():
    with Side("local") as side:
        server, client = (Agent(side, r, BYPASS_RUN_DIR="/proc/none") for r in ("server", "client"))
        port = listener(server)
        server(ECHO)
        asked(server, client, port)


@case
def unasked():
    """With no setting at all: after some calls, and no earlier."""
    with Side("local") as side:
        server, client = (Agent(side, role, BYPASS_LOCAL="", BYPASS_LOCAL_AFTER="") for role in ("server", "client"))
        port = listener(server)
        server(ECHO)
        client(ASK)
        check(client(f"ask({port}, 10)") == "ok", "other bytes")
        never_counted(server)
        check(client(f"ask({port}, 100)") == "ok", "other bytes")
        until_counted(server, 1)


@case
def silent_where_nobody_asked():
    """Where a process cannot have the memory that every process gets, only one that was told to hears of it."""
    script = "import socket; a = socket.create_server(('127.0.0.1', 0)); socket.create_connection(a.getsockname()); print('ran')"
    for limit in ("--as=400000000", "--fsize=65536"):
        for asked in (False, True):
            with Side("local") as side:
                env = side.environment("server")
                for name in ("BYPASS_LOCAL", "BYPASS_LOCAL_AFTER", "BYPASS_PROFILE")[0 if not asked else 1:]:
                    del env[name]
                done = subprocess.run(["prlimit", limit, "/usr/bin/python3", "-c", script], env=env, capture_output=True, text=True)
                check(done.returncode == 0 and done.stdout == "ran\n", f"{limit}: {done}")
                check(("the program runs on the kernel's sockets" in done.stderr) == asked, f"{limit}, asked for: {asked}: {done.stderr}")
                check(asked or done.stderr == "", f"{limit}: {done.stderr}")


# --- Waiting

WAITS = ("recv", "poll", "select", "level", "edge", "wait all")
WAITERS = r"""
level, edge = select.epoll(), select.epoll()
level.register(s, select.EPOLLIN); edge.register(s, select.EPOLLIN | select.EPOLLET)
def wait(how):
    "One record of 8 bytes, waited for in one way or another."
    if how == 'poll': p = select.poll(); p.register(s, select.POLLIN); ready = p.poll(20000)
    elif how == 'select': ready = select.select([s], [], [], 20)[0]
    elif how == 'level': ready = level.poll(20)
    elif how == 'edge':
        try: return s.recv(8, socket.MSG_DONTWAIT)
        except BlockingIOError: ready = edge.poll(20)
    else: return s.recv(8, socket.MSG_WAITALL if how == 'wait all' else 0)
    return s.recv(8, socket.MSG_DONTWAIT) if ready else 'nobody woke me'
def play(seed, first):
    mine, shared = random.Random(seed + first), random.Random(seed)
    for i in range(400):
        if (i % 2 == 0) == first:
            time.sleep(mine.choice((0, 0, 0, 0.0003, 0.003, 0.02)))
            s.sendall(i.to_bytes(8, 'little'))
        else:
            how = mine.choice(('recv', 'poll', 'select', 'level', 'edge', 'wait all'))
            got = wait(how)
            if got != i.to_bytes(8, 'little'): return f'{how}: {got} in round {i}'
    return 'all heard'
"""


@same
def every_wait_is_woken(side):
    """Records to and fro, with pauses; each is waited for in another way."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent(WAITERS)
            agent.begin(f"play({random.randrange(1000)}, {agent is client})")
        return [a.end(100) for a in (server, client)]


@same
def woken_by_another_thread(side):
    """shutdown() by one thread ends what another waits for: to read, to write, in poll()."""
    result = []
    for how in ("SHUT_RD", "SHUT_WR", "SHUT_RDWR"):
        for wait in ("s.recv(10)", "[e for _, e in p.poll(2000)]", "s.sendall(bytes(64 << 20))"):
            if how == "SHUT_RD" and "send" in wait or how == "SHUT_WR" and "recv" in wait:
                continue
            with pair(side) as (server, client):
                client("p = select.poll(); p.register(s, select.POLLIN | select.POLLRDHUP); got = []")
                client(f"""
def waits():
    try: got.append({wait})
    except OSError as e: got.append(errno.errorcode[e.errno])
t = threading.Thread(target=waits); t.start()
""")
                time.sleep(0.3)
                client(f"s.shutdown(socket.{how})")
                result.append([how, wait, client("(t.join(15), t.is_alive(), got)[1:]")])
                for agent in (server, client):
                    side.kill(agent.child, signal.SIGKILL)
    return result


@same
def signals_in_the_middle(side):
    """Handlers that end a waiting call, and handlers on top of calls that move bytes."""
    with pair(side) as (server, client):
        client("class Rang(Exception): pass")
        client("def ring(*_): raise Rang")
        client("signal.signal(signal.SIGALRM, ring); count = 0")
        client("""
def interrupted(call):
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try: return call()
    except Rang: return 'rang'
    finally: signal.setitimer(signal.ITIMER_REAL, 0)
""")
        result = [client("interrupted(lambda: s.recv(10))"), client("interrupted(lambda: select.select([s], [], [], 10))")]
        client("def tick(*_):\n    global count; count += 1")
        client("signal.signal(signal.SIGALRM, tick); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)")
        server("t = threading.Thread(target=lambda: s.sendall(pattern(0, 30 << 20))); t.start()")
        result += [client("take(s, 30 << 20)"), client("s.sendall(pattern(5, 200000))"), server("take(s, 200000)")]
        client("signal.setitimer(signal.ITIMER_REAL, 0)")
        return [*result, client("count > 0")]


@same
def both_ends_in_one_process(side):
    agent = Agent(side, "server")
    port = listener(agent)
    agent(f"a = bounded(socket.create_connection(('127.0.0.1', {port}))); b = bounded(l.accept()[0])")
    result = []
    for i in range(40):
        agent("a.sendall(pattern(0, 5000)); b.sendall(pattern(1, 3000))")
        result.append([agent("take(b, 5000)"), agent("take(a, 3000)")])
        time.sleep(0.005)
    agent("t = threading.Thread(target=lambda: (a.sendall(pattern(0, 20 << 20)), a.close())); t.start()")
    return [*result, agent("take(b, 30 << 20)"), agent("b.send(b'x')")]


@same
def connected_to_itself(side):
    agent = Agent(side, "client")
    port = free_port()
    agent(f"s = bounded(socket.socket()); s.bind(('127.0.0.1', {port})); s.connect(('127.0.0.1', {port}))")
    result = []
    for i in range(20):
        agent("s.sendall(pattern(0, 5000))")
        result.append(agent("take(s, 5000)"))
    return result


@same
def exits_behind_the_last_byte(side):
    """The sender ends, in one way or another, before the other has read anything."""
    result = []
    for end in ("os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)",
                "os.abort()"):
        with pair(side) as (server, client):
            client("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))")
            client("s.sendall(pattern(0, 200000))")
            client.begin(end)
            client.child.wait(20)
            result.append([server("take(s, 300000)"), server("s.recv(1)")])
    return result


@same
def forks_while_it_moves(side):
    """A fork at any moment of the first calls; parent and child both go on."""
    result = []
    for i in range(12):
        server, client = Agent(side, "server"), Agent(side, "client")
        port = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port}))); r, w = os.pipe()")
        server("s = bounded(l.accept()[0])")
        forker = (client, server)[i % 2]
        for n in range(i // 2):
            client("s.sendall(b'x' * 1000)")
            server("take(s, 1000)")
            server("s.sendall(b'y' * 1000)")
            client("take(s, 1000)")
        other = server if forker is client else client
        forker("""
r, w = os.pipe()
child = os.fork()
if child == 0:
    while os.read(r, 1): s.sendall(take(s, 100) + b'child')
    os._exit(0)
""")
        got = []
        for n in range(10):
            other(f"s.sendall(pattern({n}, 100))")
            forker("os.write(w, b'x')")
            got.append(other("take(s, 105)"))
            other(f"s.sendall(pattern({n} + 100, 100))")
            got.append(forker("take(s, 100)"))
            forker("s.sendall(b'parent')")
            got.append(other("take(s, 6)"))
        forker("os.close(w); os.kill(child, 9); os.waitpid(child, 0); s.close()")
        result.append([got, other("s.recv(1)")])
        for agent in (server, client):
            side.kill(agent.child, signal.SIGKILL)
    return result


@same
def duplicates(side):
    """The number under which it moved is closed, or becomes something else; a duplicate goes on."""
    result = []
    for how in ("d = s.dup(); s.close(); s = d", "d = s.dup(); os.dup2(r, s.fileno()); s.detach(); s = d",
                "os.dup2(s.fileno(), 50); s.close(); s = socket.socket(fileno=50)"):
        with pair(side) as (server, client):
            for agent in (server, client):
                agent("r, w = os.pipe()")
            client("s.sendall(pattern(0, 9000))")
            server("s.sendall(pattern(1, 8000))")
            for agent in (client, server):
                agent(how)
            result += [server("take(s, 9000)"), client("take(s, 8000)")]
            for i in range(10):
                client("s.sendall(b'ping')")
                server("s.sendall(take(s, 4))")
                result.append(client("take(s, 4)"))
            client("s.close()")
            result.append(server("s.recv(1)"))
    return result


# --- A peer that does not keep to the rules

@case
def scribbled_memory():
    """Random bytes over all that both share, at any time: the one who did it breaks its own connections; the other
    process lives, and what it has with others goes on."""
    needs_root()
    with Side("local") as side:
        server = Agent(side, "server")
        server(FLOWS)
        server("role = 'server'")
        port = listener(server)
        honest = Agent(side, "client")
        honest(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0])")
        warm(server, honest)
        broken = 0
        for round_number in range(100 if LONG else 12):
            hostile = Agent(side, "client")
            hostile(FLOWS)
            hostile("role = 'client'")
            hostile(f"many = [socket.create_connection(('127.0.0.1', {port})) for _ in range(4)]")
            server("many = [l.accept()[0] for _ in range(4)]")
            hostile("[m.sendall(bytes([i])) for i, m in enumerate(many)]")
            server("many.sort(key=lambda m: m.recv(1))")
            for one in (server, hostile):
                one(f"running = flows(many, {round_number})")
            side.until(lambda: memory_mapped(hostile)[0] > 0, "it has memory", 20)
            scribble(hostile.pid, random.Random(round_number), whole=round_number % 3 == 0)
            time.sleep(0.2)
            kill(hostile)
            verdict = server("ended()", timeout=90)
            check(verdict[1:] == [4, 0], f"round {round_number}: {verdict}")
            broken += any("other bytes" in v for v in verdict[0])
            for _ in range(20):
                honest("s.sendall(b'fine')")
                check(server("take(s, 4)") == "b:fine", "an honest connection was hurt")
        check(server.child.poll() is None, "the server ended")


def scribble(pid, rng, whole):
    """Over the indices and wake-up words of each segment of a process, or over all of it."""
    with open(f"/proc/{pid}/maps") as file:
        starts = [[int(n, 16) for n in line.split()[0].split("-")] for line in file if "bypass-connection" in line]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for _ in range(1 if whole else 200):
            for start, end in starts:
                size = end - start if whole else 8
                at = 0 if whole else rng.randrange(4096 // 8) * 8
                with contextlib.suppress(OSError):
                    memory.seek(start + at)
                    memory.write(rng.choice((rng.randbytes(size), b"\0" * size, b"\xff" * size)))



# --- A peer whose words come in any order

class Frozen:
    """One thread of a process stands still, as one that gets no processor."""
    SEIZE, INTERRUPT, DETACH, ALL = 0x4206, 0x4207, 17, 0x40000000  # PTRACE_…, __WALL

    def __init__(self, pid, name):
        named = [t for t in os.listdir(f"/proc/{pid}/task") if open(f"/proc/{pid}/task/{t}/comm").read().strip() == name]
        check(len(named) == 1, f"threads named {name}: {len(named)}")
        self.thread = int(named[0])
        self.libc = ctypes.CDLL(None, use_errno=True)

    def trace(self, request):
        check(self.libc.ptrace(request, self.thread, None, None) == 0, f"ptrace: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self.trace(self.SEIZE)
        self.trace(self.INTERRUPT)
        os.waitpid(self.thread, self.ALL)

    def __exit__(self, *_):
        with contextlib.suppress(Failure):  # it may have ended
            self.trace(self.DETACH)


def scripted(script, reads, expected, left=None):
    """`script` is what the end `p` of a connection does while the other's progress thread, which would hear of each word
    at once, stands still; then the other `reads`. `left`: what the script's end reads then, and what that may be."""
    needs_root()
    for freezes in (True, False):
        with Side("local") as side:
            peer, honest, marked = Agent(side, "server", LD_PRELOAD=""), Agent(side, "client"), Agent(side, "server")
            port, own = listener(marked), free_port()
            marked("l.close()")
            peer(open(os.path.join(HERE, "peers", "ring_peer.py")).read())
            peer("l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            peer(f"l.bind(('127.0.0.1', {port})); l.listen()")
            honest("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            honest(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
            honest("""
def rest():
    parts = []
    try:
        while part := s.recv(1 << 20): parts.append(part)
    except OSError as error: parts.append(errno.errorcode[error.errno].encode())
    return b''.join(parts)
""")
            honest("s.send(b'x')")  # it begins to look for the other end
            name = meeting_name(honest, port, own)
            side.until(lambda: f"@{name}" in open("/proc/net/unix").read(), f"@{name} in /proc/net/unix", 3)
            peer(f"t = l.accept()[0]; t.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); p = RingPeer(t, {name!r})")
            side.until(lambda: honest.shared(), "the honest end has memory", 3)
            with Frozen(honest.pid, "bypass-progress") if freezes else contextlib.nullcontext():
                peer(script)
                got = honest(reads)
                seen = peer(left[0]) if left else None
            wanted = honest(expected)
            check(got == wanted, f"progress thread {'frozen' if freezes else 'running'}: {got}, not {wanted}")
            check(not left or seen in left[1:], f"the script's end: {seen}")


IN_ALL = "t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); p.say(RESUME, 5000); t.sendall(pattern(6000, 4000))"


@case
def what_was_said_is_heard_before_the_kernel_is_read():
    """CUT, a ring of bytes, RESUME and the kernel's bytes behind it, all before the reader looks."""
    scripted(IN_ALL, "take(s, 10000)", "pattern(0, 10000)")


@case
def what_was_said_before_a_close_is_heard():
    """The end of a channel that has packets unread, as OPEN here, is told before the packets that it has brought."""
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); t.recv(1); p.channel.close(); t.close()", "rest()",
             "pattern(0, 6000)")


@case
def nothing_of_the_ring_after_lost_bytes():
    """A death has lost bytes that were to be read before the ring's."""
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 3000); p.put(pattern(3000, 5000)); p.reset()", "rest()",
             "pattern(0, 1000) + b'ECONNRESET'")
    scripted(IN_ALL + "; p.say(CUT, 7000); p.put(pattern(12000, 100)); p.reset()", "rest()", "pattern(0, 10000) + b'ECONNRESET'")


@case
def reset_before_the_count_is_taken():
    """All of it has arrived, and no FIN is among what the kernel counts."""
    scripted(IN_ALL + "; p.reset()", "rest()", "pattern(0, 10000) + b'ECONNRESET'")
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); p.reset()", "rest()",
             "pattern(0, 6000) + b'ECONNRESET'")
    scripted("p.say(CUT, 0); p.put(pattern(0, 5000)); p.reset()", "rest()", "pattern(0, 5000) + b'ECONNRESET'")


@case
def out_of_turn():
    """A word that cannot be true: both ends see a connection that was reset, also where one has no room."""
    scripted("p.say(CUT, 0); p.say(CUT, 0); p.say(CUT, 0)", "rest()", "b'ECONNRESET'", ("[t.recv(1), t.recv(1)]", "ECONNRESET"))
    scripted("t.setblocking(False); [p.say(CUT, 0) for _ in range(3)]\nwhile select.select([], [t], [], 0.3)[1]: t.send(bytes(1 << 20))",
             "rest()", "b'ECONNRESET'", ("t.setblocking(True) or t.sendall(bytes(1 << 20))", "ECONNRESET", "EPIPE"))


@case
def resume_of_a_ring_without_bytes():
    """Before the kernel's bytes before its CUT are read."""
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.say(RESUME, 0); t.sendall(pattern(1000, 4000)); "
             "p.say(CUT, 5000); p.put(pattern(5000, 2000))", "take(s, 7000)", "pattern(0, 7000)")


# --- What programs do besides

@same
def killed_with_bytes_unread(side):
    """The kernel resets such a connection; what the killed end has written is read first."""
    result = []
    for pending in (0, 10):
        with pair(side) as (server, client):
            client("s.sendall(pattern(0, 1000))")
            if pending:
                server(f"s.sendall(pattern(0, {pending}))")
            kill(server)
            ended = "(lambda p: (p.register(s, 0), p.poll(10000)) and True)(select.poll())"
            result.append([client(ended), poll_bits(client), client("s.recv(100)"), client("s.recv(100)"), client("s.send(b'x')"), poll_bits(client)])
    return result


@same
def all_memory_locked(side):
    """mlockall takes what is there, not what an arena could become."""
    tools = """
import ctypes
def lock(flags):
    return ctypes.CDLL(None, use_errno=True).mlockall(flags)
def resident():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmRSS:')).split()[1])
"""
    result = []
    for flags in (1, 2, 3):
        for late in (False, True):
            server, client = Agent(side, "server"), Agent(side, "client")
            for agent in (server, client):
                agent(tools)
                if not late:
                    result.append(agent(f"lock({flags})"))
            connected(server, client)
            for agent in (server, client):
                if late:
                    result.append(agent(f"lock({flags})"))
                resident = agent("resident()")
                check(resident < 300_000, f"mlockall({flags}), {late}: {resident} kB resident")
            client("s.sendall(pattern(0, 100000))")
            result.append(server("take(s, 100000)"))
            for agent in (server, client):
                kill(agent)
    return result


@same
def streams_of_c(side):
    """What libc's own stream over a standard number reads and writes is seen by nobody."""
    with pair(side) as (server, client):
        client("""
import ctypes
libc = ctypes.CDLL(None)
def line():
    kept = os.dup(0)
    os.dup2(s.fileno(), 0)
    text = ctypes.create_string_buffer(100)
    libc.fgets(text, 100, ctypes.c_void_p.in_dll(libc, 'stdin'))
    os.dup2(kept, 0)
    return text.value
""")
        server("s.sendall(b'a line\\n')")
        result = [client("line()")]
        client("s.sendall(b'answer')")
        result.append(server("take(s, 6)"))
        server("s.sendall(b'another\\n')")
        return result + [client("line()")]


@same
def sharer_killed_in_the_middle(side):
    """A forked child that reads the same connection is killed; the parent goes on."""
    for _ in range(40 if LONG else 6):
        with pair(side) as (server, client):
            server("""
pid = os.fork()
if pid == 0:
    while True:
        s.recv(200000)
""")
            client("""
import threading
def pump():
    while True:
        s.send(b'x' * 100000)
threading.Thread(target=pump, daemon=True).start()
""")
            time.sleep(0.1)
            server("os.kill(pid, 9); os.waitpid(pid, 0)")
            check(server("all(take(s, 200000) for _ in range(20))", timeout=30), "the parent goes on")
            for agent in (server, client):
                kill(agent)
    return []


if __name__ == "__main__":
    run_named(CASES, "passed")

"""Connections within a host: two programs on the kernel's loopback whose bytes go through memory that both share. The result
must be what the kernel's sockets give: ends of connections, what only the kernel can do, and what programs do besides.
local.py NAME...   (no name: lists them)"""
import os
import random
import select
import signal
import time

from agents import Agent
from harness import LONG, Side, check, free_port, run_named
from local_pairs import cases, connected, kill, listener, pair, until_counted, warm

CASES, case, same = cases()


# --- Ends of connections

@same
def names_and_errors(side):
    """getpeername, getsockname, SO_ERROR and the like on a connection that has moved."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = connected(server, client)
    own = client("s.getsockname()[1]")
    return [client("s.getpeername()") == ["127.0.0.1", port], server("s.getsockname()") == ["127.0.0.1", port],
            server("s.getpeername()") == ["127.0.0.1", own],
            [a("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)") for a in (server, client)],
            [a("s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)") for a in (server, client)],
            client("s.connect(s.getpeername())"), client("s.listen(1)"), client("s.accept()"),
            client("s.bind(('127.0.0.1', 0))"), client("s.sendall(b'goes on')"), server("s.recv(7)")]


@same
def counted_in_tcp_info(side):
    """TCP_INFO shows how many bytes went, and how long ago the last of them."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent("info = lambda: s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)")
            agent("ago = lambda: [struct.unpack_from('I', info(), at)[0] for at in (44, 52)]")  # sent, received: ms
            agent("counts = lambda: struct.unpack_from('QQ', info(), 120)")  # acked, received
            agent("before = counts()")
        result = []
        for _ in range(2):
            for agent in (server, client):
                agent("time.sleep(0.6); idle = min(ago()); began = time.monotonic()")
                result.append(agent("idle >= 500"))
            client("s.sendall(pattern(0, 100000))")
            result += [server("take(s, 100000)"), server("s.sendall(pattern(5, 30000))"), client("take(s, 30000)")]
            for agent in (server, client):
                agent("time.sleep(0.1)")  # a kernel's acknowledgement comes late
                result += [agent("[now - then for now, then in zip(counts(), before)]"), agent("len(info())"),
                           agent("max(ago()) <= (time.monotonic() - began) * 1000 + 100")]
        return result


@same
def refused_and_full(side):
    """Connecting where nobody listens, and to a listener whose backlog is full."""
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


@same
def watched_before_it_connects(side):
    """An epoll set has the socket since before connect(), as nginx's sets do: level-triggered, edge-triggered and one-shot.
    Also with a thread that sleeps in the set while connect() waits, and with a first attempt that is refused."""
    result = []
    for how in ("0", "select.EPOLLET", "select.EPOLLONESHOT"):
        server, client = Agent(side, "server"), Agent(side, "client")
        port = listener(server)
        client(f"e = select.epoll(); how = select.EPOLLIN | select.EPOLLRDHUP | {how}; to = ('127.0.0.1', {port})")
        client("poll = lambda seconds: [v for _, v in e.poll(seconds)]")
        client("t = socket.socket(); t.setblocking(False); e.register(t, how | select.EPOLLOUT)")
        result.append([how, client("poll(0)"), client("e.modify(t, how | select.EPOLLOUT)"), client("t.connect_ex(to)")])
        result.append([client("poll(5)"), client("e.modify(t, how)"), client("poll(0)")])
        server("s = bounded(l.accept()[0]); s.sendall(b'x')")
        result.append([client("poll(5)"), client("t.recv(9)"), client("t.connect_ex(to)"), client("poll(0)")])
        client("t.close(); t = socket.socket(); e.register(t, how | select.EPOLLOUT); poll(0)")
        client("got = []; sleeper = threading.Thread(target=lambda: got.extend(poll(5))); sleeper.start()")
        client("e.modify(t, how | select.EPOLLOUT) if how & select.EPOLLONESHOT else None")
        client("t.connect(to); sleeper.join()")
        result.append(client("got") if how == "select.EPOLLET" else None)  # the others hear of the unconnected one, too
        server("l.close()")
        client("t.close(); t = socket.socket(); t.setblocking(False); e.register(t, how | select.EPOLLOUT); poll(0)")
        client("t.connect_ex(to); e.modify(t, how | select.EPOLLOUT)")
        result.append([client("poll(5)"), client("t.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)")])
        server(f"l = socket.create_server(('127.0.0.1', {port}))")
        result.append([client("[t.connect_ex(to), t.connect_ex(to)]"), client("e.modify(t, how | select.EPOLLOUT)"), client("poll(5)")])
    return result


HALVES = ("SHUT_WR", "SHUT_RD", "SHUT_RDWR")


def poll_bits(agent, name="s"):
    return agent(f"(lambda p: (p.register({name}, 0x2fff & ~0x20), [e for _, e in p.poll(0)])[1])(select.poll())")


# A FIN goes over the kernel on both sides, and may take a while: the first byte of TCP_INFO shows it.
ESTABLISHED = "b:\x01"
SHUT_HAS_COME = ("next('seen' for _ in range(100000) if s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1) != b'\\1' "
                 "or time.sleep(0.0001))")


@same
def shutdowns(side):
    """Each kind of shutdown(), at either end, with bytes under way. Then what the other end can still do."""
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
    """A process that looks right after the other end's shutdown or close sees the end at once."""
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
            if client("state") != ESTABLISHED:  # otherwise the kernel has not brought it yet
                seen.append([client("[e for _, e in seen]"), client("s.recv(9)"), client("s.recv(9)")])
            for agent in (server, client):
                agent("s.close()")
            if len(seen) == 10:
                break
        result.append([end, seen])
    return result


@same
def half_closed_and_the_other_way(side):
    """After the FIN of one end, some megabytes go the other way."""
    with pair(side) as (server, client):
        client("s.sendall(pattern(0, 300000)); s.shutdown(socket.SHUT_WR)")
        server("t = threading.Thread(target=lambda: (s.sendall(pattern(0, 8 << 20)), s.shutdown(socket.SHUT_WR))); t.start()")
        return [client("take(s, 9 << 20)"), server("take(s, 400000)"), server("t.join()"), poll_bits(server), poll_bits(client)]


@same
def aborts(side):
    """SO_LINGER 0, and a close with bytes unread. The peer reads what the kernel would let it read, then gets
    ECONNRESET."""
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
def sends_after_the_peers_end(side):
    """The first send is answered with a reset. The next send reports it."""
    result = []
    server, client = Agent(side, "server"), Agent(side, "client")
    for end in ("s.shutdown(socket.SHUT_RDWR)", "s.shutdown(socket.SHUT_RD); s.shutdown(socket.SHUT_WR)", "s.close()"):
        for one, other in ((server, client), (client, server)) * 8:
            connected(server, client)
            one(end)
            result.append([other("s.send(b'x')") for _ in range(3)])
            one("s.close()")
            other("s.close()")
    return result


@same
def peeks_that_wait(side):
    """MSG_PEEK with MSG_WAITALL, or below SO_RCVLOWAT. It waits for the rest, the end or a time-out, or does not wait."""
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
        with pair(side) as (server, client):  # the peer has given its end back to the kernel
            client("s.sendall(b'x')")
            server("a, b = os.pipe(); os.splice(s.fileno(), b, 1)")
            peeked(whole, "b'12345'", "b'67890'")
    return result


@same
def times_of_the_listener(side):
    """An accepted connection has its listener's SO_RCVTIMEO, SO_SNDTIMEO and SO_RCVLOWAT, also in shared memory."""
    server, client = Agent(side, "server"), Agent(side, "client")
    port = listener(server)
    server("t = struct.pack('ll', 0, 300000); [l.setsockopt(socket.SOL_SOCKET, o, t) for o in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)]")
    server("l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)")
    client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
    server("s = l.accept()[0]")
    warm(server, client)
    result = []
    for written in (b"ab", b"c"):
        client(f"s.sendall({written})")
        server("poll = select.poll(); poll.register(s, select.POLLIN)")
        result.append(server("len(poll.poll(100))"))
    result += [server("s.recv(2)"), server("s.recv(1)")]
    result.append(server("s.recv(1)"))
    result.append(server("[s.send(bytes(100000)) for _ in range(1000)]"))
    return result


@same
def resets_are_told_once(side):
    """The first call reports a reset, whether the library or the kernel knows of it. If another thread disconnects the
    connection, a receive ends with EPIPE, and the next call gets the error."""
    result = []
    for first in ("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)", "s.send(b'x')", "take(s, 100)"):
        with pair(side) as (server, client):
            client("signal.signal(signal.SIGPIPE, signal.SIG_IGN); s.sendall(b'ab')")
            server("s.sendall(bytes(12))")
            side.until(lambda: client("queued(s)") == 12, "they have come")
            server("s.close()")
            side.until(lambda: any(bits & select.POLLHUP for bits in poll_bits(client)), "the end has come")
            result.append([client(first), client("s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)"), client("s.send(b'x')")])
    with pair(side) as (server, client):
        client("""
def receive():
    global thread_id, told
    thread_id = threading.get_native_id()
    try: told = s.recv(1)
    except OSError as error: told = error.errno
libc = ctypes.CDLL(None, use_errno=True)
thread_id = 0; thread = threading.Thread(target=receive); thread.start()""")
        side.until(lambda: client("thread_id") and open(f"/proc/{client.pid}/task/{client('thread_id')}/stat").read().rsplit(")")[1][1] == "S",
                   "it sleeps")
        client("dissolved = libc.connect(s.fileno(), bytes(16), 16); thread.join()")
        result.append([client("dissolved"), client("told"), client("s.recv(1)"), client("s.recv(1)")])
    return result


@same
def bytes_before_a_close(side):
    """A connection is closed right after the last byte. The peer reads all bytes, and then the end."""
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
    """Each thread sends some questions, gets answers and closes after the last answer. Meanwhile its ends look for each
    other and move."""
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
    """With a time in SO_LINGER, close() waits for the peer's acknowledgements, not for its program."""
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
def read_that_finds_an_urgent_byte_alone_passes_it(side):
    """After that the urgent byte is no longer unread. So a close sends the peer an end and no reset."""
    result = []
    for _ in range(8):
        with pair(side) as (server, client):
            server.begin("s.recv(1)")  # it sleeps, and makes no call after that
            time.sleep(0.02)
            client("s.send(b'1')")
            server.end()
            client("s.send(b'!', socket.MSG_OOB)")
            result.append([server("s.recv(9, socket.MSG_DONTWAIT)"), server("s.close()"), client("s.recv(1)")])
    return result


@same
def reads_end_at_the_urgent_mark(side):
    """A read ends at the urgent mark, whatever lies in the ring before it and in the kernel after it."""
    def mark(agent):
        agent("at = array.array('i', [0]); fcntl.ioctl(s, 0x8905, at)")  # SIOCATMARK
        return agent("at[0]")

    def queued(agent):
        return agent("queued(s)")

    def order(server, flags=0):
        return [server(f"s.recv(100, {flags})"), mark(server), server("s.recv(1, socket.MSG_OOB)"), server("s.recv(100)"), mark(server)]

    def oob_first(server):
        return [server("s.recv(1, socket.MSG_OOB)"), server("s.recv(100)"), mark(server), server("s.recv(100)")]

    def inline(server):
        server("s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)")
        return [server("s.recv(100)"), mark(server), server("s.recv(100)")]

    def in_pieces(server):
        return [queued(server), server("s.recv(2)"), mark(server), queued(server), server("s.recv(100)"), mark(server), server("s.recv(100)")]

    def peeking(server):
        return [server("s.recv(100, socket.MSG_PEEK)"), server("s.recv(100)"), server("s.recv(100)")]

    result = []
    for reads in (order, lambda server: order(server, 0x100), oob_first, inline, in_pieces, peeking):  # MSG_WAITALL
        with pair(side) as (server, client):
            client("s.sendall(b'abc'); s.send(b'U', socket.MSG_OOB); s.sendall(b'def')")
            time.sleep(0.05)
            result.append(reads(server))
    return result


@same
def options_of_the_kernel(side):
    """SO_ZEROCOPY, TCP_ULP and the like, while bytes of both directions are unread."""
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


def told_with_bytes(agent):
    """Reads in pieces. Returns what the messages say beside their bytes."""
    agent("def queued(): return struct.unpack('i', fcntl.ioctl(s, 0x541B, bytes(4)))[0]")
    agent("def until(count):\n  while queued() < count: time.sleep(0.001)")
    agent("def said(m): return [len(m[0]), [[level, kind, struct.unpack('i', data)[0]] for level, kind, data in m[1]], m[2]]")
    agent("until(1000)")
    return [agent(f"said(s.recvmsg({room}, 100, {flags}))") for room, flags in ((300, 0), (100, 2), (0, 0), (650, 0), (50, 0))]  # 2: MSG_PEEK


@same
def unread_bytes_are_told(side):
    """TCP_INQ, as gRPC asks for it. The connection stays in shared memory."""
    result, port = [], 0
    server, client = Agent(side, "server"), Agent(side, "client")
    for inherits in (False, True):
        port = listener(server)
        if inherits:
            server("l.setsockopt(6, 36, 1)")
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0]); l.close()")
        warm(server, client)
        if not inherits:
            server("s.setsockopt(6, 36, 1)")
        client("s.sendall(bytes(1000))")
        result.append(told_with_bytes(server))
        check(side.name == "kernel" or server.shared(), f"it has left the shared memory: {side.why()}")
        client("s.sendall(b'last'); s.close()")
        server("p = select.poll(); p.register(s, select.POLLRDHUP); p.poll(20000)")
        result += [server("said(s.recvmsg(10, 100))"), server("said(s.recvmsg(10, 100))"), server("s.close()")]
    return result


@same
def receives_of_nothing(side):
    """recv() of 0 bytes gives EAGAIN if no bytes are there, and 0 if there are some, or an end."""
    with pair(side) as (server, client):
        client("libc = ctypes.CDLL(None, use_errno=True)")
        client("def nothing(flags=socket.MSG_DONTWAIT):\n"
               "  ctypes.set_errno(0)\n"
               "  return libc.recv(s.fileno(), None, 0, flags), ctypes.get_errno()")
        result = [client("nothing()"), server("s.sendall(b'x')"), client("bool(select.select([s], [], [], 20)[0])")]
        result += [client("nothing()"), client("nothing(0)"), client("s.recv(5)"), client("nothing()"), server("s.close()")]
        return [*result, client("nothing(0)"), client("nothing()")]


@same
def shut_to_read_then_to_write(side):
    """shutdown() with bytes unread. These stay readable. Later bytes are answered with a reset."""
    with pair(side) as (server, client):
        server("s.sendall(b'before')")
        client("s.shutdown(socket.SHUT_RD)")
        client("s.shutdown(socket.SHUT_WR)")
        result = [server("s.recv(1)"), server("s.sendall(b'late')")]
        for agent in (server, client):  # both hear of it before they ask further
            agent("p = select.poll(); p.register(s, 0)")
            result.append(agent("[bits & select.POLLERR != 0 for _, bits in p.poll(10000)]"))
        return [*result, server("s.send(b'x')"), client("s.recv(99)"), client("s.send(b'x')"), client("s.recv(99)")]


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
    with pair(side) as (server, client):
        client("libc = ctypes.CDLL(None); r, w = os.pipe(); os.write(w, b'spliced')")
        client("f = os.memfd_create('f'); os.write(f, pattern(1, 9000))")
        result.append(client("libc.splice(r, None, s.fileno(), None, ctypes.c_size_t(7), 0)"))
        for at in range(3):  # the first of them finds that it is the kernel's by now
            result.append(client(f"os.sendfile(s.fileno(), f, {at * 1000}, 5000)"))
        return [*result, server("take(s, 15007)")]


# --- What programs do besides

@same
def killed_with_bytes_unread(side):
    """The kernel resets such a connection. The peer first reads what the killed end has written."""
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
    """mlockall() locks the pages that are there, not those that an arena could get."""
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
def limit_on_address_space(side):
    """A program limits its own address space (RLIMIT_AS, as vsftpd does). It has as much room as without the library, reads
    back what it has set, and passes that limit on at exec."""
    tools = """
import mmap, resource, subprocess
GIB = 1 << 30
def has_room(mib):
    try: mmap.mmap(-1, mib << 20).close()
    except OSError as error: return error.errno
    return True
def limit(soft, hard):
    try: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except ValueError as error: return str(error), resource.getrlimit(resource.RLIMIT_AS)
    return resource.getrlimit(resource.RLIMIT_AS), resource.prlimit(os.getpid(), resource.RLIMIT_AS), has_room(1), has_room(2048)
def of_executed():
    return subprocess.run(['/bin/sh', '-c', 'ulimit -v; ulimit -Hv'], env={}, capture_output=True).stdout
def unprivileged():
    r, w = os.pipe()
    if os.fork() == 0:
        os.setuid(65534)
        steps = [limit(GIB // 2, GIB), limit(GIB, GIB), limit(GIB, 2 * GIB), limit(GIB // 2, GIB // 2), limit(GIB, GIB), of_executed()]
        os.write(w, repr(steps).encode())
        os._exit(0)
    os.wait()
    return os.read(r, 4096)
"""
    result = []
    for bound in ("GIB, 2 * GIB", "GIB, GIB"):
        with pair(side) as (server, client):
            for agent in (server, client):
                agent(tools)
                result.append(agent(f"limit({bound})"))
                result.append(agent("of_executed()"))
                result.append(agent("unprivileged()"))
                result.append(agent("limit(2 * GIB, GIB)"))
                result.append(agent("limit(-1, -1)"))
            client("s.sendall(pattern(0, 100000))")
            result.append(server("take(s, 100000)"))
    return result


@same
def streams_of_c(side):
    """A stream of libc's, over a standard number."""
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
    """A forked child that reads the same connection is killed. The parent goes on."""
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


@case
def short_transfers_take_a_copy_and_no_more():
    """A process does nothing but questions and answers. Its calls are counted, so that no slower way has taken the short
    one's place."""
    with Side("local") as side, pair(side) as (server, client):
        def at_once(agent):
            return side.stat(agent.child)["counters"]["local_at_once"]

        before = at_once(client)
        server.begin("[s.sendall(take(s, 64)) for _ in range(300)] and None")
        check(client("all(s.sendall(pattern(i, 64)) or take(s, 64) for i in range(300))", timeout=30), "all came back")
        server.end()
        # Each question takes the short way, unless something else has just used the connection. An answer does so only if it comes soon.
        side.until(lambda: at_once(client) - before >= 200, f"{at_once(client) - before} of 600 calls were a copy", 5)


if __name__ == "__main__":
    run_named(CASES, "passed")

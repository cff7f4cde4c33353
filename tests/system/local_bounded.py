"""Connections within a host: how much a writer may have unread that has asked for little (SO_SNDBUF, TCP_NOTSENT_LOWAT),
compared with what the kernel takes.   local_bounded.py NAME...   (no name: lists them)"""
from agents import Agent
from harness import LONG, Side, check, run_named
from local_pairs import cases, moved, pair

CASES, case, same = cases()

KIB = 1 << 10
# What the writer and its reader ask for, and how much both buffers then hold. An amount below the smallest bound of a ring
# stays with the kernel.
ASKED = ({"lowat": 1}, {"lowat": 16 * KIB}, {"lowat": 64 * KIB}, {"sndbuf": 2 * KIB}, {"sndbuf": 16 * KIB},
         {"sndbuf": 16 * KIB, "rcvbuf": 64 * KIB}, {"sndbuf": 64 * KIB, "rcvbuf": 64 * KIB, "lowat": 16 * KIB})
# The reader's buffer is made small after its window was announced.
LATE = ({"sndbuf": 8 * KIB, "rcvbuf": 8 * KIB}, {"sndbuf": 16 * KIB, "rcvbuf": 8 * KIB}, {"rcvbuf": 8 * KIB, "lowat": 1},
        {"sndbuf": 32 * KIB, "rcvbuf": 32 * KIB})
TINY = ({"sndbuf": 4 * KIB, "rcvbuf": 4 * KIB}, {"sndbuf": 16 * KIB, "rcvbuf": 16 * KIB})

SOURCE = """
LOWAT = 25  # TCP_NOTSENT_LOWAT

def ask(writer, reader, sndbuf=None, rcvbuf=None, lowat=None):
    for s, level, name, value in ((writer, socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf),
                                  (reader, socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf),
                                  (writer, socket.IPPROTO_TCP, LOWAT, lowat)):
        if value is not None:
            s.setsockopt(level, name, value)

def out(s, wait=0):
    '''Whether it may be written to, now or within so many milliseconds.'''
    p = select.poll(); p.register(s, select.POLLOUT)
    return any(bits & select.POLLOUT for _, bits in p.poll(wait))

def fill(s, piece, sent=0):
    '''Writes as much as it may, a late acknowledgement's room (TCP_DELACK_MAX, 200 ms) included.'''
    s.setblocking(False)
    first = sent
    while True:
        try:
            sent += s.send(pattern(sent, piece))
        except BlockingIOError:
            if not out(s, 300):
                return sent - first

def connected(when, **asked):
    l = socket.socket()
    if when == 'before':
        ask(None, l, rcvbuf=asked.get('rcvbuf'))
    l.bind(('127.0.0.1', 0)); l.listen()
    a = bounded(socket.socket())
    rest = {name: value for name, value in asked.items() if name != 'rcvbuf'}
    if when == 'before':
        ask(a, None, **rest)
    a.connect(l.getsockname())
    b = bounded(l.accept()[0])
    if when == 'after connect':
        ask(a, b, **asked)
    return a, b

def warm(a, b):
    for s, t in ((a, b), (b, a)):
        s.sendall(b'x')
        take(t, 1)
"""


def connect(side, when, asked, shared=True):
    """An agent with both ends, `a` that writes and `b`. The connection is in the ring, unless it must stay outside."""
    agent = Agent(side, "server")
    agent(SOURCE)
    agent(f"a, b = connected({when!r}, **{asked})")
    agent("[warm(a, b) for _ in range(20)]")
    if side.name == "local":
        side.until(lambda: agent("warm(a, b)") or moved(agent) == shared, f"in shared memory: {shared}", 5)
    if when == "when paired":
        agent(f"ask(a, b, **{asked})")
    return agent


def taken(name, when, questions):
    """How much each writer may write. All of them write at once, because waiting for room that does not come takes long."""
    with Side(name) as side:
        agents = [(connect(side, when, asked), piece) for asked, piece in questions]
        for agent, piece in agents:
            agent.begin(f"fill(a, {piece})")
        amounts = [agent.end() for agent, _ in agents]
        for (agent, _), amount in zip(agents, amounts):
            check(agent("out(a)") is False, "it is full, and says that it may be written to")
            read = agent(f"take(b, {amount}) == pattern(0, {amount})")
            check(read, "the reader got other bytes")
            check(agent("out(a, 5000)"), "all of it was read, and it may not be written to")
        return amounts


def compare(when):
    """The amount lies between what the kernel takes and 64 KiB more. Without the bound a ring takes 256 KiB."""
    late = () if when == "before" else LATE
    questions = [(asked, piece) for asked in (*ASKED, *late) for piece in ((100, 4 * KIB, 1 << 20) if LONG else (4 * KIB,))]
    wrong = [f"{asked}, by {piece}: {kernel} by the kernel, {ours} by the ring"
             for (asked, piece), kernel, ours in zip(questions, taken("kernel", when, questions), taken("local", when, questions))
             if not kernel <= ours <= kernel + 64 * KIB]
    check(not wrong, "\n".join(wrong))


@case
def bounded_by_options_before_connect(): compare("before")


@case
def bounded_by_options_after_connect(): compare("after connect")


@case
def bounded_by_options_when_it_is_paired(): compare("when paired")


@case
def bounded_to_less_than_a_ring_can_be():
    """The connection stays with the kernel, and the reason is told."""
    for asked in TINY:
        with Side("kernel") as side:
            kernel = connect(side, "before", asked)("fill(a, 4096)")
        with Side("local") as side:
            agent = connect(side, "before", asked, shared=False)
            side.until(lambda: "no_shared_memory" in side.why() and "SO_SNDBUF" in side.why(), "why says it", 5)
            ours = agent("fill(a, 4096)")
        check(ours == kernel, f"{asked}: {kernel} by the kernel, {ours} beside it")


@case
def bounded_by_nothing():
    """The kernel's buffers grow. A full ring is left for them."""
    for asked in ({}, {"rcvbuf": 4 * KIB}, {"sndbuf": 1 << 20}):
        with Side("local") as side:
            agent = connect(side, "after connect", asked)
            check(agent("fill(a, 65536)") >= 256 * KIB, f"{asked}: less than a ring")


@same
def bounded_writer_hears_of_room(side):
    """A program sends as much as it may. It sees a part sent, EAGAIN, and no EPOLLOUT; and an edge when the bytes were
    read."""
    agent = connect(side, "before", {"sndbuf": 16 * KIB})
    agent("e = select.epoll(); e.register(a, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET); first = e.poll(5)")
    agent("a.setblocking(False); sent = a.sendmsg([pattern(0, 100), pattern(100, 1 << 20)])")
    agent("sent += fill(a, 4096, sent)")
    seen = [agent(look) for look in ("sent < 200 << 10", "out(a)", "bool(e.poll(0)) or e.poll(0)", "select.select([], [a], [], 0)[1]")]
    seen.append(agent("take(b, sent) == pattern(0, sent)"))
    seen += [agent(look) for look in ("[bits for _, bits in e.poll(5)]", "out(a)", "a.send(b'x')", "take(b, 1)")]
    return seen


def in_small_pieces(side, asked, piece):
    """A writer that sleeps for room goes on, however few bytes are read at once."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent(SOURCE)
        server(f"ask(s, s, **{asked})")
        server.begin("s.sendall(pattern(0, 1000003))")
        got = client(f"h = hashlib.sha256(); n = 0\nwhile n < 1000003:\n    part = s.recv({piece}); n += len(part); h.update(part)")
        server.end()
        return got, client("[n, h.hexdigest() == hashlib.sha256(pattern(0, 1000003)).hexdigest()]")


@same
def bounded_writer_sleeps(side):
    return [in_small_pieces(side, asked, piece) for asked in ({"lowat": 1}, {"sndbuf": 16 * KIB}, {"sndbuf": 4 * KIB, "rcvbuf": 4 * KIB})
            for piece in (999, 65536)]


@same
def bounded_when_it_is_full(side):
    """The bound is set below what is unread. Nothing is lost, and there is no room until enough was read."""
    agent = connect(side, "after connect", {})
    agent("a.setblocking(False); sent = a.send(pattern(0, 240 << 10)); ask(a, b, sndbuf=16384)")
    return [agent("out(a)"), agent("take(b, sent) == pattern(0, sent)"), agent("out(a, 5000)")]


@same
def bounded_when_it_goes_back_to_the_kernel(side):
    """The ring is full when an urgent byte takes the connection back. All bytes come in order, and no more than before may
    be written."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent(SOURCE)
        server("ask(s, s, lowat=1)")
        sent = server("fill(s, 65536)")
        check(sent < 240 * KIB, sent)
        client("s.send(b'!', socket.MSG_OOB)")
        got = [server("out(s)"), client(f"take(s, {sent}) == pattern(0, {sent})"), server("out(s, 5000)")]
        server("s.setblocking(True); s.sendall(b'behind it')")
        return got + [client("take(s, 9)")]


@same
def bounded_until_more_is_allowed(side):
    """When an option allows more, a waiting writer goes on at once."""
    agent = connect(side, "after connect", {"sndbuf": 16 * KIB})
    agent("sent = fill(a, 4096)")
    agent("e = select.epoll(); e.register(a, select.EPOLLOUT | select.EPOLLET)")
    seen = [agent("e.poll(0)")]
    agent("a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)")
    return seen + [agent("[bits for _, bits in e.poll(5)]"), agent("take(b, sent) == pattern(0, sent)")]


if __name__ == "__main__":
    run_named(CASES, "as on the kernel")

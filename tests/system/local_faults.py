"""Shared memory within a host: peers that die, break the rules, or do what they do in any order.
local_faults.py NAME...   (no name: lists them)"""
import contextlib
import ctypes
import os
import random
import signal
import time

from agents import Agent
from harness import HERE, LONG, Failure, Side, check, free_port, run_named
from local_pairs import cases, kill, listener, meeting_name, memory_mapped, moved, needs_root, pair, until_counted, warm

CASES, case, _ = cases()


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
    """One of two processes is killed while 16 connections carry bytes in both directions. The other sees the ends, and gets
    no byte that was not sent or that came twice. Then all shared memory is free."""
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
            # They are told apart by their order, because a connection's two ends have one number.
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


@case
def client_killed():
    killed_in_the_middle("client", 100 if LONG else 3)


@case
def server_killed():
    killed_in_the_middle("server", 100 if LONG else 3)


# --- Anything, in any order

class Script:
    """Random operations of two ends. None of them waits, so it is known what each direction holds."""
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
            wait = 5000 if self.unread[end] else 0  # a move is heard of a little later
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
        agent("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)")  # bytes that are sent are there
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
def random_operations_in_memory(): random_operations(False, seeds(60 if LONG else 3))


@case
def random_operations_while_it_moves(): random_operations(True, seeds(60 if LONG else 3))


# --- A peer that does not keep to the rules

@case
def scribbled_memory():
    """A process writes random bytes over the shared memory, at any time. It breaks its own connections. The other process
    lives, and its connections to other processes go on."""
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
        for round_number in range(100 if LONG else 8):
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
    """Overwrites the indices and wake-up words of each segment of a process, or the whole segments."""
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
    """Stops one thread of a process, as if it got no processor."""
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


def strangers(side):
    """The agents of a script: a peer without the library; the honest end `s` of a connection to that peer, before it looks
    for the other end; and the name at which they meet."""
    needs_root()
    peer, honest, marked = Agent(side, "server", LD_PRELOAD=""), Agent(side, "client"), Agent(side, "server")
    port, own = listener(marked), free_port()
    marked("l.close()")
    peer(open(os.path.join(HERE, "peers", "ring_peer.py")).read())
    peer("l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
    peer(f"l.bind(('127.0.0.1', {port})); l.listen()")
    honest("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
    honest(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
    peer("t = l.accept()[0]; t.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)")
    return peer, honest, meeting_name(honest, port, own)


@contextlib.contextmanager
def met():
    """A side with a hand-written end that has met an honest end in shared memory."""
    with Side("local") as side:
        peer, honest, name = strangers(side)
        honest("""
def rest():
    parts = []
    try:
        while part := s.recv(1 << 20): parts.append(part)
    except OSError as error: parts.append(errno.errorcode[error.errno].encode())
    return b''.join(parts)
""")
        honest("s.send(b'x')")  # it begins to look for the other end
        side.until(lambda: os.path.exists(name), name, 3)
        peer(f"p = RingPeer(t, {name!r})")
        side.until(lambda: honest.shared(), "the honest end has memory", 3)
        yield side, peer, honest


def scripted(script, reads, expected, left=None):
    """The end `p` of a connection runs `script` while the other's progress thread is stopped, which would hear each message
    at once. Then the other end runs `reads`. `left`: what the end of the script reads then, and which answers are
    allowed."""
    for freezes in (True, False):
        with met() as (_, peer, honest):
            with Frozen(honest.pid, "bypass-progress") if freezes else contextlib.nullcontext():
                peer(script)
                got = honest(reads)
                seen = peer(left[0]) if left else None
            wanted = honest(expected)
            check(got == wanted, f"progress thread {'frozen' if freezes else 'running'}: {got}, not {wanted}")
            check(not left or seen in left[1:], f"the script's end: {seen}")


WRITER = """
import contextlib
def fill():
    sent, p = 0, select.poll()
    p.register(s, select.POLLOUT)
    s.setblocking(False)
    while p.poll(200):  # a full ring's writer goes on over the kernel after 10 ms, if that has room
        with contextlib.suppress(BlockingIOError): sent += s.send(pattern(sent, 65536))
    return sent
"""
READER = """
def rest():
    parts, error = [], None
    try:
        while part := s.recv(1 << 20): parts.append(part)
    except OSError as e: error = errno.errorcode[e.errno]
    data = b''.join(parts)
    return len(data), data == pattern(0, len(data)), error
"""


@case
def ends_of_a_writer_that_waits_for_room():
    """Bytes that a call accepted arrive, in whatever way the writer ends, even if the kernel has no room for the bytes in
    the ring."""
    for room in (4096, 65536, None):
        for end in ("s.close()", "s.shutdown(socket.SHUT_WR)", "os._exit(0)", None):
            with Side("local") as side, pair(side) as (server, client):
                client(WRITER)
                server(READER)
                if room is not None:
                    client(f"s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {room})")
                    server(f"s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, {room})")
                sent = client("fill()")
                if end is None:
                    kill(client)
                else:
                    client.begin(end)
                got = server("rest()")
                check(got == [sent, True, None], f"room {room}, {end}: {got} of {sent}")


@case
def killed_with_bytes_of_both_unread():
    """An end is killed. The other reads what the kernel has of it, and then learns that the other direction was reset."""
    with Side("local") as side, pair(side) as (server, client):
        client(WRITER)
        server(READER)
        sent = client("fill()")
        server("s.sendall(b'never read')")
        kill(client)
        got = server("rest()")
        check(got == [sent, True, "ECONNRESET"], f"{got} of {sent}")


IN_ALL = "t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); p.say(RESUME, 0); t.sendall(pattern(1000, 9000))"


@case
def what_was_said_is_heard_before_the_kernel_is_read():
    """CUT, bytes in the ring, RESUME, and the same bytes and more over the kernel, all before the reader looks."""
    scripted(IN_ALL, "take(s, 10000)", "pattern(0, 10000)")


@case
def what_was_said_before_a_close_is_heard():
    """A channel closes with packets unread (here OPEN). The reader hears of the end before it has read the packets that
    came."""
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); t.recv(1); p.channel.close(); t.close()", "rest()",
             "pattern(0, 6000)")


@case
def nothing_of_the_ring_after_lost_bytes():
    """A death has lost bytes that come before those in the ring."""
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 3000); p.put(pattern(3000, 5000)); p.reset()", "rest()",
             "pattern(0, 1000) + b'ECONNRESET'")


@case
def reset_before_the_count_is_taken():
    """All bytes have arrived, and the kernel's count of them includes no FIN."""
    scripted(IN_ALL + "; p.reset()", "rest()", "pattern(0, 10000) + b'ECONNRESET'")
    scripted("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.put(pattern(1000, 5000)); p.reset()", "rest()",
             "pattern(0, 6000) + b'ECONNRESET'")
    scripted("p.say(CUT, 0); p.put(pattern(0, 5000)); p.reset()", "rest()", "pattern(0, 5000) + b'ECONNRESET'")


@case
def more_than_anybody_has_to_say():
    """A peer sends thousands of messages at once, or sends for ever. It is heard no more, because the lock is held while it
    is heard."""
    with met() as (_, peer, honest):
        with Frozen(honest.pid, "bypass-progress"):
            peer("p.channel.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)  # SO_SNDBUFFORCE: the kernel queues them all")
            peer("for _ in range(4000): p.channel.send(b'w')")
            got = honest("rest()")
        check(got == honest("b'ECONNRESET'"), got)


@case
def out_of_turn():
    """A message that cannot be true. Both ends see a reset connection, even if one has no room."""
    scripted("p.say(CUT, 0); p.put(pattern(0, 100)); p.say(RESUME, 101)", "rest()", "b'ECONNRESET'")
    scripted("p.say(CUT, 0); p.say(CUT, 0); p.say(CUT, 0)", "rest()", "b'ECONNRESET'", ("[t.recv(1), t.recv(1)]", "ECONNRESET"))
    scripted("t.setblocking(False); [p.say(CUT, 0) for _ in range(3)]\nwhile select.select([], [t], [], 0.3)[1]: t.send(bytes(1 << 20))",
             "rest()", "b'ECONNRESET'", ("t.setblocking(True) or t.sendall(bytes(1 << 20))", "ECONNRESET", "EPIPE"))


@case
def resume_of_a_ring_without_bytes():
    """RESUME comes while bytes in front of its CUT are unread in the kernel. The next CUT comes when they are read."""
    with met() as (side, peer, honest):
        peer("t.sendall(pattern(0, 1000)); p.say(CUT, 1000); p.say(RESUME, 0); t.sendall(pattern(1000, 4000))")
        check(honest("take(s, 5000) == pattern(0, 5000)") is True, "what is read of the kernel's")
        check(peer("hear_word(p, OPEN)") is True, "the reader says OPEN")
        peer("p.say(CUT, 5000); p.put(pattern(5000, 2000))")
        check(honest("take(s, 2000) == pattern(5000, 2000)") is True, "what is read of the ring")


@case
def what_was_read_of_a_returned_ring_is_skipped():
    """A writer takes its direction back, and sends again what it does not know to be read. The reader has read more, and
    skips those bytes."""
    with met() as (side, peer, honest):
        honest("""
def looked():
    there = bool(select.select([s], [], [], 0)[0]), queued(s)
    try: return there, s.recv(9, socket.MSG_DONTWAIT)
    except BlockingIOError: return there, None
""")
        with Frozen(honest.pid, "bypass-progress"):
            peer("p.say(CUT, 0); p.put(pattern(0, 5000))")
            check(honest("take(s, 3000) == pattern(0, 3000)") is True, "what is read of the ring")
            peer("p.say(RESUME, 1000); t.sendall(pattern(1000, 1500))")
            looks = honest("looked()")
            check(looks == [[False, 0], None], f"nothing is there that was not read before: {looks}")
            peer("t.sendall(pattern(2500, 3000))")
            check(honest("select.select([s], [], [], 5)[0] == [s], queued(s)") == [True, 2500], "what follows is there")
            check(honest("take(s, 2500) == pattern(3000, 2500)") is True, "what is read behind it")
            check(peer("hear_word(p, OPEN)") is True, "the reader says OPEN")
            peer("p.say(CUT, 4500); p.put(pattern(5500, 500))")
            check(honest("take(s, 500) == pattern(5500, 500)") is True, "what is read of the ring again")
            peer("p.say(RESUME, 5200); t.sendall(pattern(5700, 300))")
            check(honest("looked()") == [[False, 0], None], "all that came was read before")
            check(peer("hear_word(p, OPEN)") is True, "the reader says OPEN")
            peer("p.say(CUT, 4800); p.put(pattern(6000, 500)); t.shutdown(socket.SHUT_WR)")
            check(honest("rest() == pattern(6000, 500)") is True, "what is read to the end")


@case
def who_leaves_hears_a_resume_first():
    """A process hands a connection on. It has not heard yet that the writer sends the ring's bytes again."""
    with met() as (side, peer, honest):
        honest("here, there = socket.socketpair()")
        with Frozen(honest.pid, "bypass-progress"):
            peer("p.say(CUT, 0); p.put(pattern(0, 5000))")
            check(honest("take(s, 3000) == pattern(0, 3000)") is True, "what is read of the ring")
            peer("p.resumes(1000); t.sendall(pattern(1000, 6000))")
            honest("here.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno()]))])")
        check(honest("os.read(there.fileno(), 1)") == "b:x", "it was handed on")
        side.until(lambda: not honest.shared(), "it has left shared memory", 3)
        check(honest("take(s, 4000) == pattern(3000, 4000)") is True, "what is read of the kernel's")


@case
def refused_late():
    """The host's time limit ends just as the guest says that it is ready. The connection goes on over the kernel."""
    with Side("local") as side:
        peer, honest, name = strangers(side)
        peer(f"p = RingHost({name!r})")
        honest("s.send(b'x')")
        peer("p.meet(t)")
        side.until(lambda: honest.shared(), "the guest has memory", 3)
        peer("p.refuse_late()")
        side.until(lambda: not honest.shared(), "the guest has none any more", 3)
        peer("t.sendall(pattern(0, 100000))")
        check(honest("take(s, 100000) == pattern(0, 100000)") is True, "what the guest reads")
        honest("s.sendall(pattern(0, 5000)); s.close()")
        check(peer("bytes(take(t, 5001)) == b'x' + pattern(0, 5000), t.recv(1)") == [True, "b:"], "what the host reads")


if __name__ == "__main__":
    run_named(CASES, "passed")

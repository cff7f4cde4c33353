"""Shared memory within a host: threads and processes that share a connection, how much it holds, and who is woken.
local_waits.py NAME...   (no name: lists them)"""
import errno
import random
import signal
import time

from agents import Agent
from harness import LIB, LONG, NETBENCH, Side, calls_between_marks, check, free_port, run_named
from local_pairs import cases, connected, listener, memory_mapped, moved, pair, shared_ever, until_counted

CASES, case, same = cases()


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
def closed_while_it_is_polled(side):
    """By another thread: poll() looks the number up again when something comes, and at its end."""
    result = []
    for shared in (False, True):
        for comes in (True, False):
            with pair(side, shared) as (server, client):
                client("kept, number, p = s.dup(), s.fileno(), select.poll(); p.register(number, select.POLLIN)")
                client("waits = threading.Event()")
                client("def poll(): waits.set(); got.extend(p.poll(1000))")
                client("got = []; t = threading.Thread(target=poll); t.start(); waits.wait(); time.sleep(0.2); s.close()")
                if comes:
                    server("s.sendall(b'x')")
                client("t.join()")
                result.append(client("[(number == fd, bits) for fd, bits in got]"))
                client("s = kept; s.setblocking(False)")
                result.append(client("s.recv(9)"))
    return result


@same
def one_edge_tells_of_the_end(side):
    """A thread that sleeps in an edge-triggered set hears of a close, and of a reset, once, with all that is then true."""
    result = []
    for how in ("s.close()", "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()") * 8:
        with pair(side) as (server, client):
            client("e = select.epoll(); e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)")
            result.append(client("[bits for _, bits in e.poll(5)]"))
            client("heard = []; t = threading.Thread(target=lambda: heard.extend(e.poll(5))); t.start()")
            server(how)
            result.append(client("(t.join(), [bits for _, bits in heard + e.poll(0.05)])[1]"))
    return result


@same
def told_to_be_there_is_there(side):
    """What FIONREAD counts comes of one recv(), also where the kernel's bytes before the ring's have not all come."""
    with pair(side) as (server, client):
        server("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)")
        client("s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19); s.setblocking(False); sent = 0")
        client("def fill():\n"
               "  global sent\n"
               "  p = select.poll(); p.register(s, select.POLLOUT)\n"
               "  while p.poll(200):\n"  # a full ring's writer goes on over the kernel after 10 ms
               "    try: sent += s.send(pattern(sent, 65536))\n"
               "    except BlockingIOError: pass")
        client("fill()")
        server("took = len(take(s, 1 << 18))")  # the ring's, and the direction may move there again
        client("fill()")
        server("def look():\n"
               "  global took\n"
               "  there = queued(s); got = s.recv(max(there, 1)); took += len(got)\n"
               "  return there in (0, len(got))")
        result = []
        while server("took") < client("sent"):
            result.append(server("look()"))
        return [set(result) == {True}, server("took") == client("sent")]


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


@case
def numbers_are_the_programs():
    """A connection's channel has a number of the process's, which the program gets when it has none left (EMFILE): all but
    what the library needs anyway. Connections that were in shared memory before go on."""
    limit, librarys = 200, 8
    with Side("local") as side:
        server, client = Agent(side, "server"), Agent(side, "client")
        port = listener(server)
        server("""
def echo(c):
    while part := c.recv(100): c.sendall(part)
def serve():
    while True: threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
""")
        client(f"""
import resource
before = len(os.listdir('/proc/self/fd'))
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
many = []
def echoed(c):
    c.sendall(b'x')
    return c.recv(9) == b'x'
def fill():
    try:
        while True:
            many.append(bounded(socket.create_connection(('127.0.0.1', {port}))))
            if not all(echoed(many[-1]) for _ in range(6)): return 'not echoed'
    except OSError as error:
        return error.errno, len(many) + before
""")
        end = client("fill()", timeout=60)
        check(end[0] == errno.EMFILE and end[1] >= limit - librarys, end)
        check(shared_ever(client), "none was in shared memory")
        check(client("all(map(echoed, many))"), "not all go on")


@case
def sleepers_are_woken_by_one_call():
    """Who sleeps at once changes no mask of signals for it, and nobody that is awake is written to: neither once in ten of
    the round trips."""
    with Side("local", profile="cpu") as side:
        port, count = free_port(), 2000
        trace = ["strace", "-f", "-qq", "-o"]
        loads, common = ("-E", f"LD_PRELOAD={LIB}", NETBENCH, "pingpong"), (side.address, port, "--mark", "--count", count)
        server = side.start("server", *trace, side.path("server.trace"), *loads, "server", *common, until="ready", LD_PRELOAD="")
        side.run("client", *trace, side.path("client.trace"), *loads, "client", *common, timeout=60, LD_PRELOAD="")
        side.end(server)
        for name in ("server", "client"):
            calls = calls_between_marks(side.path(f"{name}.trace"))
            told = [c for c in calls if any(f" {call}(" in c for call in ("rt_sigprocmask", "write", "read"))]
            check(any(" ppoll(" in c for c in calls), f"{name}: it has not slept")
            check(len(told) < count // 10, f"{name}: {len(told)} of {len(calls)} calls: " + "\n".join(told[:10]))


THREADS = """
ends = []
def echo(s, number):
    ends.append((s, threading.get_native_id()))
    while True:
        if number % 2 and not select.select([s], [], [], 30)[0] or not (got := s.recv(100)):
            break
        s.sendall(got)
def serve(count):
    for i in range(count):
        threading.Thread(target=echo, args=(l.accept()[0], i), daemon=True).start()
"""
SLEEPS = """
def slept(): return {t: int(open(f'/proc/self/task/{t}/status').read().split('voluntary_ctxt_switches:')[1].split()[0])
                     for _, t in ends}
"""


@case
def thread_of_a_connection_is_woken_alone():
    """Of 64 threads, each with a connection that it reads or polls, 63 sleep on while one is asked a thousand times."""
    with Side("local") as side:
        server, client = Agent(side, "server"), Agent(side, "client")
        count, rounds = 64, 1000
        port = listener(server)
        server(THREADS)
        server(SLEEPS)
        server.begin(f"serve({count})")
        client(f"many = [bounded(socket.create_connection(('127.0.0.1', {port}))) for _ in range({count})]")
        server.end()
        client("""
def ask(s):
    s.sendall(b'x')
    return s.recv(9)
""")
        def all_are_shared():
            client("[ask(s) for _ in range(5) for s in many] and None", timeout=60)
            return len(server.shared()) == len(client.shared()) == count
        side.until(all_are_shared, "all connections have shared memory", 60)
        for asked in (0, 1):
            before = dict(server("slept()"))
            client(f"[ask(many[{asked}]) for _ in range({rounds})] and None", timeout=60)
            woken = sorted(after - before[thread] for thread, after in server("slept()").items())
            # The one may spin between two questions, and the others hear of an end of the kernel's now and then.
            check(sum(woken[:-1]) < rounds // 10, f"the threads have slept so often while connection {asked} was asked: {woken}")


@case
def who_is_awake_is_not_written_to():
    """A thread that never sleeps costs its peer no system call, though another thread sleeps in another connection."""
    with Side("local") as side, pair(side) as (server, client):
        port = listener(server)
        client(f"other = socket.create_connection(('127.0.0.1', {port}))")
        server("sleeper = l.accept()[0]; t = threading.Thread(target=lambda: sleeper.recv(1), daemon=True)")
        for _ in range(20):
            client("other.sendall(b'warm')")
            server("take(sleeper, 4)")
            server("sleeper.sendall(b'warm')")
            client("take(other, 4)")
        until_counted(client, 2)
        server("t.start()")
        server("""
def busy(count):
    s.setblocking(False)
    while count:
        try: got = s.recv(9)
        except BlockingIOError: continue
        s.send(got)
        count -= 1
""")
        out, rounds = side.path("sends.trace"), 1000
        tracer = side.start("tracer", "strace", "-f", "-qq", "-e", "trace=sendto", "-p", client.pid, "-o", out, LD_PRELOAD="")
        side.until(lambda: f"TracerPid:\t{tracer.pid}\n" in open(f"/proc/{client.pid}/status").read(), "it is traced")
        server.begin(f"busy({rounds})")
        client(f"[(s.sendall(b'x'), s.recv(9)) for _ in range({rounds})] and None", timeout=60)
        server.end(60)
        side.kill(tracer, signal.SIGINT)
        sends = open(out).read().count('"w"')
        check(sends < rounds // 10, f"{sends} wake-ups for {rounds} questions")


@case
def set_that_is_changed_for_each_request_asks_the_kernel_of_nothing():
    """A client that takes its connection out of its set while it writes: as redis-benchmark does."""
    with Side("local") as side:
        with pair(side) as (server, client):
            connected(server, client, name="other")
            until_counted(client, 2)
            client("ready = select.epoll(); ready.register(other, select.EPOLLIN); ready.register(s, select.EPOLLIN)")
            out, rounds = side.path("calls.trace"), 1000
            calls = "trace=epoll_ctl,epoll_wait,epoll_pwait,poll,ppoll"
            tracer = side.start("tracer", "strace", "-qq", "-e", calls, "-p", client.pid, "-o", out, LD_PRELOAD="")
            side.until(lambda: f"TracerPid:\t{tracer.pid}\n" in open(f"/proc/{client.pid}/status").read(), "it is traced")
            client(f"[(ready.unregister(s), ready.register(s, select.EPOLLIN)) for _ in range({rounds})] and None", timeout=60)
            server("s.sendall(b'x')")
            check(client("[fd == s.fileno() for fd, _ in ready.poll(10)]") == [True], "what came is not told")
            side.kill(tracer, signal.SIGINT)
            made = open(out).read().splitlines()
            check(len(made) < rounds // 10, f"{len(made)} calls for {rounds} changes: " + "\n".join(made[:10]))


SLEEPER = """
def sleeper(poll, until=lambda events: events):
    # A thread in a wait, and what has ended it.
    got = []
    def sleeps():
        while not got:
            events = poll()
            if until(events): got.append([events[0][1] & (select.EPOLLIN | select.EPOLLOUT), len(events)])
    thread = threading.Thread(target=sleeps, daemon=True)
    thread.start()
    while not any(open(f'/proc/self/task/{thread.native_id}/syscall').read().split()[0] == call for call in ('232', '281', '271')):
        time.sleep(0.001)
    return thread, got
def ended(thread, got):
    thread.join(10)
    return got or 'nobody has woken it'
"""


@same
def what_comes_into_a_set_while_a_thread_sleeps_there(side):
    """A connection, within another set too, what is waited for of it, and the first socket with a kernel's side."""
    result = []
    with pair(side) as (server, client):
        connected(server, client, name="t")
        server(SLEEPER)
        # Used by a thread that is awake while the other one sleeps elsewhere, and then among what that waits for.
        for add in ("o.register(t, select.EPOLLIN)", "i = select.epoll(); i.register(t, select.EPOLLIN); o.register(i, select.EPOLLIN)"):
            server("o = select.epoll(); o.register(s, select.EPOLLIN); asleep = sleeper(lambda: o.poll())")
            client("t.sendall(b'touched')")
            server("take(t, 7)")
            server(add)
            client("t.sendall(b'news')")
            result.append(server("ended(*asleep)"))
            server("take(t, 4)")
        # The ring is filled while somebody sleeps for room, or asks for it then.
        server("s.setblocking(False)")
        server("""
def fill():
    count = 0
    try:
        while True: count += s.send(bytes(4096))
    except BlockingIOError: return count
""")
        for asked, then in (("select.EPOLLIN | select.EPOLLOUT | select.EPOLLET", "pass"),
                            ("select.EPOLLIN", "o.modify(s, select.EPOLLIN | select.EPOLLOUT)")):
            server(f"o = select.epoll(); o.register(s, {asked}); full = []")
            server("asleep = sleeper(lambda: o.poll(), lambda events: events and full)")
            # Read at once by a peer that is told nothing between.
            client("reader = threading.Thread(target=lambda: take(s, size)); size = 1 << 30")
            server(f"count = fill(); full.append(1); {then}")
            client(f"size = {server('count')}; reader.start(); reader.join()")
            result.append(server("ended(*asleep)"))
        server("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); unconnected = socket.socket()")
        server("o = select.epoll(); o.register(unconnected, select.EPOLLIN | select.EPOLLET); o.poll(0.1)")
        server("asleep = sleeper(lambda: o.poll())")
        server("o.register(u, select.EPOLLIN)")
        client(f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'news', ('127.0.0.1', {server('u.getsockname()[1]')}))")
        result.append(server("ended(*asleep)"))
    return result


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
        for wait in ("s.recv(10)", "[e for _, e in p.poll(700)]", "s.sendall(bytes(64 << 20))"):
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


if __name__ == "__main__":
    run_named(CASES, "passed")

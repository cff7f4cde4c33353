"""Connections within a host: which process is woken, by what, and at which cost.   local_waits.py NAME...   (no name: lists them)"""
import random
import signal
import time

from agents import Agent
from harness import LIB, NETBENCH, Side, calls_between_marks, check, free_port, run_named
from local_pairs import cases, connected, listener, moved, pair, until_counted

CASES, case, same = cases()


@same
def closed_while_it_is_polled(side):
    """Another thread closes the number. poll() looks the number up again when something comes, and when it ends."""
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
    """A thread that sleeps in an edge-triggered set gets one event for a close, and one for a reset, with all bits that are
    then true.

    Linux wakes the waiters of a reset connection twice: tcp_reset() changes the state, then reports the error. A thread
    that takes the first event in between gets an equal second one (111 of 20,000 resets beside a thread that polls). So a
    reset may be told twice."""
    server, client, result = Agent(side, "server"), Agent(side, "client"), []
    for how in ("s.close()", "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()") * 8:
        connected(server, client)
        client("e = select.epoll(); e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)")
        result.append(client("[bits for _, bits in e.poll(5)]"))
        client("heard = []; t = threading.Thread(target=lambda: heard.extend(e.poll(5))); t.start()")
        server(how)
        bits = client("(t.join(), [bits for _, bits in heard + e.poll(0.05)])[1]")
        was_reset = "LINGER" in how
        result.append(bits[:1] if was_reset and bits[1:] == bits[:1] else bits)
        client("e.close(); s.close()")
    return result


@same
def polls_that_always_find_something(side):
    """A poll never waits, because another of its sockets is always writable. It still sees bytes that come, whichever
    way."""
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
def sleepers_are_woken_by_one_call():
    """A thread that sleeps at once makes no system call to change its signal mask, and a thread that is awake gets no
    wake-up. Either happens in less than a tenth of the round trips."""
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
    """64 threads each read or poll a connection of their own. One gets a thousand questions, and the other 63 sleep on."""
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
        client("def is_one_of(ports): return [i for i, s in enumerate(many) if s.getsockname()[1] in ports]")
        def shared_ones():
            client("[ask(s) for _ in range(5) for s in many] and None", timeout=60)
            ends = [{s[name] for s in agent.shared()} for agent, name in ((server, "peer_port"), (client, "local_port"))]
            found = client(f"is_one_of({sorted(ends[0] & ends[1])})")
            # Beside load not all attempts to meet end in time.
            return found if len(found) >= count // 4 else None
        found = side.until(shared_ones, "a quarter of the connections have shared memory", 60)
        for asked in (found[0], found[-1]):
            before = dict(server("slept()"))
            client(f"[ask(many[{asked}]) for _ in range({rounds})] and None", timeout=60)
            woken = sorted(after - before[thread] for thread, after in server("slept()").items())
            # One thread may spin between two questions. The others hear of an end from the kernel now and then.
            check(sum(woken[:-1]) < rounds // 10, f"the threads have slept so often while connection {asked} was asked: {woken}")


@case
def who_is_awake_is_not_written_to():
    """A thread that never sleeps costs its peer no system call, although another thread sleeps in another connection."""
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
    """A client takes its connection out of its set while it writes, as redis-benchmark does."""
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
    # A thread in a wait, and what has ended the wait.
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
    """While a thread sleeps in a set, it gets a connection (also within another set), other events to wait for, and its
    first socket with a kernel half."""
    result = []
    with pair(side) as (server, client):
        connected(server, client, name="t")
        server(SLEEPER)
        # A thread that is awake uses it while the other one sleeps elsewhere. Then it is among the sockets for which that one waits.
        for add in ("o.register(t, select.EPOLLIN)", "i = select.epoll(); i.register(t, select.EPOLLIN); o.register(i, select.EPOLLIN)"):
            server("o = select.epoll(); o.register(s, select.EPOLLIN); asleep = sleeper(lambda: o.poll())")
            client("t.sendall(b'touched')")
            server("take(t, 7)")
            server(add)
            client("t.sendall(b'news')")
            result.append(server("ended(*asleep)"))
            server("take(t, 4)")
        # The ring is filled while a thread sleeps for room, or begins to wait for room then.
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
            # A peer that gets no message in between reads all of it at once.
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
    """Records go to and fro, with pauses. Each is waited for in another way."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent(WAITERS)
            agent.begin(f"play({random.randrange(1000)}, {agent is client})")
        return [a.end(100) for a in (server, client)]


@same
def woken_by_another_thread(side):
    """shutdown() by one thread ends the wait of another thread: for bytes, for room, in poll()."""
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
    """Handlers that end a waiting call, and handlers that interrupt calls while they move bytes."""
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


if __name__ == "__main__":
    run_named(CASES, "passed")

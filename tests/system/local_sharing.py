"""Shared memory within a host: threads, processes and numbers that share a connection, and how many a process has.
local_sharing.py NAME...   (no name: lists them)"""
import errno
import signal
import time

from agents import Agent
from harness import Side, check, free_port, run_named
from local_pairs import cases, listener, memory_mapped, pair, shared_ever, until_counted

CASES, case, same = cases()


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
def datagrams_that_a_relative_takes(side):
    """Parent and child have one datagram socket. What one of them has taken is not there for the other."""
    agent = Agent(side, "server")
    agent("""
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.bind(('127.0.0.1', 0)); d.setblocking(False)
def seen():
    watch = select.poll(); watch.register(d, select.POLLIN)
    return [bool(watch.poll(0)), bool(select.select([d], [], [], 0)[0])]
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    while True:
        told = os.read(r, 1)
        if told == b'q': os._exit(0)
        os.write(w2, repr((seen(), d.recv(10)) if told == b't' else seen()).encode())
def child(what): os.write(w, what); return os.read(r2, 100).decode()
""")
    result = []
    for taker in ("child(b't')", "d.recv(10)"):
        agent("d.sendto(b'datagram', d.getsockname())")
        result += [agent("seen()"), agent("child(b's')"), agent(taker), agent("seen()"), agent("child(b's')")]
    agent("os.write(w, b'q'); os.wait()")
    return result


@same
def set_of_a_child_hears_what_its_parent_ends(side):
    """The child has an epoll set of its own, with a connection that the parent reads to its end."""
    with pair(side) as (server, client):
        client("""
s.setblocking(False)
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    watch = select.epoll(); watch.register(s, select.EPOLLOUT)
    while os.read(r, 1) != b'q': os.write(w2, repr(watch.poll(0)).encode())
    os._exit(0)
def child(): os.write(w, b's'); return os.read(r2, 100).decode().split(',')[-1]
""")
        result = [client("child()")]
        server("s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()")
        client("select.select([s], [], [], 10)")
        for what in ("child()", "s.recv(10)", "child()", "child()"):
            result.append(client(what))
        client("os.write(w, b'q'); os.wait()")
    return result


@same
def threads_of_one_socket(side):
    """Eight threads write to one connection, and eight read. Each record arrives once, and whole if it does so in the
    kernel."""
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


@same
def many_at_once(side):
    """1,000 connections at once. All are used, read by epoll, and closed."""
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
def answered(some):
    left = {m.fileno(): m for m in some}
    while left:
        ready = e.poll(20)
        if not ready: return len(left)
        for fd, _ in ready:
            m = left.pop(fd, None)
            if m is None: continue
            if m.recv(100) != b'x' * 100: return 'other bytes'
    return 0
""")

    def rounds(some):
        result = []
        for _ in range(5):
            for one, other in ((client, server), (server, client)):
                one(f"[m.sendall(b'x' * 100) for m in {some}]", timeout=60)
                result.append(other(f"answered({some})", timeout=60))
        return result

    # An attempt lasts 500 ms. Where other work makes a round of 1,000 calls longer, none of the 1,000 may meet. So some are
    # used before the others.
    result = rounds("many[:100]")
    if side.name == "local":
        until_counted(server, 10)
    result += rounds("many")
    client("[m.close() for m in many]", timeout=60)
    result.append(server("sum(m.recv(1) == b'' for m in many)", timeout=60))
    server("[m.close() for m in many]", timeout=60)
    result += [memory_mapped(a) for a in (server, client)]
    return result


@case
def numbers_are_the_programs():
    """A connection's channel takes a number of the process. If the program has none left (EMFILE), it gets that number,
    except those that the library needs anyway. Connections that had moved to shared memory go on."""
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
    """The sender ends, in one of several ways, before the other end has read anything."""
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
    """A process forks during its first calls, at any moment. Parent and child both go on."""
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
    """The number under which the connection moved is closed, or becomes something else. A duplicate goes on."""
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

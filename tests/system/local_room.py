"""Shared memory within a host: how much a connection holds, and a writer that waits for room.
local_room.py NAME...   (no name: lists them)"""
import time

from harness import LONG, Side, check, run_named
from local_pairs import cases, pair

CASES, case, same = cases()


def filled(side, chunk):
    """How many bytes a writer can write while nobody reads, in one direction and then in the other."""
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
    """Two programs that send before they read get as far as with the kernel's buffers."""
    found = {}
    for name in ("kernel", "local"):
        with Side(name) as side:
            found[name] = [filled(side, chunk) for chunk in ((1000, 65536, 1 << 20) if LONG else (65536,))]
    check(all(l >= k for ours, kernels in zip(found["local"], found["kernel"]) for l, k in zip(ours, kernels)),
          f"bytes that find room without a reader: {found}")


@same
def refilled_after_a_full_ring(side):
    """A writer waits for room in poll, epoll and send(). It goes on when the reader has made room."""
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
    """Both ends write without a pause and read with many pauses. A full ring is left and used again, often, in both
    directions."""
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
def told_to_be_there_is_there(side):
    """One recv() gives all bytes that FIONREAD counts, even if the kernel's bytes before those in the ring have not all
    come."""
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
def both_send_first(side):
    """Each writes 300 KB in one blocking call before it reads."""
    with pair(side) as (server, client):
        for agent in (server, client):
            agent.begin("s.sendall(pattern(0, 300000))")
        return [agent.end() for agent in (server, client)] + [a("take(s, 300000)") for a in (server, client)]


if __name__ == "__main__":
    run_named(CASES, "passed")

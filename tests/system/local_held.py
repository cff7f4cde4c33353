"""Connections within a host: bytes that a writer holds back until more come (TCP_CORK, MSG_MORE).
local_held.py NAME...   (no name: lists them)"""
import os
import re
import time

from agents import Agent
from harness import Failure, Side, check, free_port, run_named
from local_pairs import cases, kill, listener, moved, pair

CASES, case, same = cases()


def both_ends(side):
    """An agent that has both ends, `a` and `b`, so that nothing happens between two of its calls."""
    agent = Agent(side, "server")
    agent("""
MORE = socket.MSG_MORE
l = socket.create_server(('127.0.0.1', 0))
a = bounded(socket.create_connection(l.getsockname())); b = bounded(l.accept()[0])

def now(s):
    try:
        return s.recv(1 << 20, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None

def cork(on):
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)

def no_delay(on):
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, on)

def held(*calls):
    '''What the reader finds at once after each of them.'''
    found = []
    for call in calls:
        call()
        found.append(now(b))
    return found
""")
    for _ in range(100):
        agent("[s.sendall(b'x') or take(t, 1) for s, t in ((a, b), (b, a))]")
        if side.name != "local" or moved(agent):
            return agent
        time.sleep(0.01)
    raise Failure(f"it did not move to shared memory: {agent.sockets()}")


def found(side, calls, before="None"):
    """Returns what the reader finds after each of the writer's `calls`."""
    agent = both_ends(side)
    agent(before)
    return agent(f"held({', '.join(f'lambda: {call}' for call in calls)})")


# --- When it goes

@same
def held_back_until_the_cork_is_drawn(side):
    return found(side, ("cork(1)", "a.send(b'head:')", "a.send(b'body')", "cork(1)", "cork(0)", "a.send(b'free')"), "no_delay(1)")


@same
def held_back_until_a_send_announces_no_more(side):
    return found(side, ("a.send(b'head:', MORE)", "a.send(b'and:', MORE)", "a.send(b'body')", "a.send(b'free')"), "no_delay(1)")


@same
def held_back_until_no_delay_is_set(side):
    return found(side, ("cork(1)", "a.send(b'head:')", "no_delay(1)", "a.send(b'body')", "no_delay(1)", "cork(0)"))


@same
def held_back_by_the_listeners_option(side):
    """An accepted connection inherits the listener's option."""
    agent = both_ends(side)
    agent("cork(0); l.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)")
    agent("b = bounded(socket.create_connection(l.getsockname())); a = bounded(l.accept()[0])")
    agent("cork(0)")
    for _ in range(60):
        agent("[s.sendall(b'x') or take(t, 1) for s, t in ((a, b), (b, a))]")
    # The end goes by the kernel in any case, which delivers it a moment later where its softirq thread is busy.
    return agent("held(lambda: cork(1), lambda: a.send(b'head:'), lambda: a.shutdown(socket.SHUT_WR)) + [b.recv(9)]")


@same
def held_back_but_for_full_segments(side):
    agent = both_ends(side)
    agent("no_delay(1)")
    size = agent("cork(1) or a.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)")
    seen = agent(f"[len(each or b'') for each in held(lambda: a.send(bytes({size} + 1000)), lambda: cork(0))]")
    return [seen[0] == size, seen[1]]


@same
def held_back_by_nagle_until_the_peer_answers(side):
    """A small write waits for the peer's next bytes, and leaves with them, whichever call takes these from the kernel."""
    agent = Agent(side, "server", BYPASS_LOCAL_AFTER="1")
    agent("""
l = socket.create_server(('127.0.0.1', 0))

def found_behind_an_answer(rounds):
    a = bounded(socket.create_connection(l.getsockname())); b = bounded(l.accept()[0])
    for _ in range(rounds):
        for s, t in ((a, b), (b, a)):
            s.sendall(b'x')
            take(t, 1)
    b.send(b'held')
    a.send(b'answer')
    try:
        return a.recv(9, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
""")
    return [agent(f"[found_behind_an_answer({rounds}) for _ in range(10)]") for rounds in range(1, 7)]


@same
def held_back_for_one_that_has_shut_both_ways_and_closes(side):
    """The writer's kernel has the bytes. So none is unread at the reader, and no reset comes before them."""
    agent = both_ends(side)
    agent("cork(1); a.send(bytes(5000)); b.shutdown(socket.SHUT_RDWR); a.send(bytes(1000)); b.close()")
    agent("p = select.poll(); p.register(a, select.POLLIN | select.POLLRDHUP)")
    return [agent("a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)"), agent("p.poll(0)[0][1]"), agent("now(a)")]


@same
def held_back_no_longer_than_for_a_moment(side):
    """The writer makes no further call. The bytes still leave."""
    results = []
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'corked')")
        results.append(client("take(s, 6)"))
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0); s.send(b'more', socket.MSG_MORE); time.sleep(1)")
        results.append(client("take(s, 4)"))
    return results


def rests(agent):
    """Whether the agent's progress thread has not run for three seconds, so that it waits to be called."""
    def runs():
        tasks = [f"/proc/{agent.pid}/task/{each}" for each in os.listdir(f"/proc/{agent.pid}/task")]
        thread, = [task for task in tasks if open(f"{task}/comm").read() == "bypass-progress\n"]
        return re.search(r"^voluntary_ctxt_switches:\t(\d+)", open(f"{thread}/status").read(), re.M).group(1)
    before = runs()
    time.sleep(3)
    return runs() == before


@case
def held_back_for_a_moment_beside_a_port():
    """The progress thread sleeps until a wire needs it. It still sends the bytes."""
    with Side("bypass", shm=True) as side:
        server, client = (Agent(side, role, BYPASS_LOCAL_AFTER="0") for role in ("server", "client"))
        for agent in (server, client):
            agent(f"t = socket.socket(); t.bind(('0.0.0.0', {free_port()})); t.listen()")
        port = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0])")

        def have_moved():
            for one, other in ((client, server), (server, client)):
                one("s.sendall(b'warm')")
                check(other("take(s, 4)") == "b:warm", "other bytes")
            return moved(server) and moved(client)

        side.until(have_moved, "it has moved to shared memory")
        side.until(lambda: rests(server), "its progress thread rests", 20)
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'corked')")
        check(client("take(s, 6)") == "b:corked", "it stays where it is")


@same
def held_back_where_there_is_room_only(side):
    """A writer that waits for room sends the bytes."""
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)")
        server.begin("s.sendall(pattern(0, 3000001))")
        got = client("take(s, 3000001)")
        server.end()
        return got


# --- How a writer ends that holds some back

def ends(side, how):
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'the ') and s.send(b'last')")
        how(server)
        return [client("take(s, 100)"), client("s.recv(1)")]


@same
def held_back_by_one_that_is_killed(side): return ends(side, kill)


@same
def held_back_by_one_that_exits(side): return ends(side, lambda server: server.begin("os._exit(0)"))


@same
def held_back_by_one_that_closes(side): return ends(side, lambda server: server("s.close()"))


@same
def held_back_by_one_that_shuts(side): return ends(side, lambda server: server("s.shutdown(socket.SHUT_WR)"))


@same
def held_back_by_one_that_is_killed_while_it_is_read(side):
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'seen') and s.send(b' and more')")
        client.begin("take(s, 100)")
        kill(server)
        return client.end()


@same
def held_back_by_one_that_is_killed_is_there_to_be_polled(side):
    """The writer is killed. The reader finds the bytes before it writes anything itself, which the writer's kernel answers
    with a reset."""
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'the last')")
        kill(server)
        looks = ["select.select([s], [], [], 5)[0] == [s]", "queued(s)", "s.recv(3, socket.MSG_PEEK)", "s.send(b'x')"]
        return [client(look) for look in looks] + [client("take(s, 8)")]


@same
def held_back_by_one_that_is_killed_for_a_reader_that_has_shut(side):
    """Bytes that come after the reader's shutdown() are still read."""
    with pair(side) as (server, client):
        client("s.shutdown(socket.SHUT_RD)")
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'the last')")
        kill(server)
        return [client("s.recv(3, socket.MSG_PEEK)"), client("take(s, 8)"), client("s.recv(1)")]


@same
def held_back_when_it_goes_back_to_the_kernel(side):
    """The reader sends an urgent byte, so the connection goes back to the kernel. All bytes come, in order."""
    with pair(side) as (server, client):
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'head:')")
        client("s.send(b'!', socket.MSG_OOB)")
        server("s.send(b'body'); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0); s.send(b'.')")
        return client("take(s, 10)")


@same
def held_back_by_a_parent_that_ends(side):
    """A child also has the connection and does nothing with it. The bytes come, and no end."""
    with pair(side) as (server, client):
        server("r, w = os.pipe()\nif os.fork() == 0:\n    os.close(w); os.read(r, 1); os._exit(0)")
        server("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1); s.send(b'held')")
        server("w2 = os.dup(w)")
        got = client("take(s, 4)")
        kill(server)
        return got, client("s.recv(1)")


if __name__ == "__main__":
    run_named(CASES, "as on the kernel")

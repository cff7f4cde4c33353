"""Root masters on a port that serve clients themselves, beside children that have given root's rights up.
masters.py NAME...   (no name: lists them)"""
from harness import check, children_of, free_port, run_named
from rights import arena_descriptors, arenas, cases, drivers, user_of

CASES = {}
case = cases(CASES)


def ask(side, port):
    client = side.start_python("client", "asks_once.py", side.address, port, 1)
    check(side.end(client, 60) == 0, side.output(client))


def check_apart(side, master, user=0):
    """The master maps no memory that a child can write to."""
    check(user_of(master.pid) == user, f"the master is of user {user_of(master.pid)}")
    for child in children_of(master.pid):
        check(user_of(child) != 0 and arenas(child), f"{child} has {arenas(child)}")
        check(not arenas(child) & arenas(master.pid), "a child has its master's memory")
        check(side.soon(lambda: arena_descriptors(child) == [], 5), f"a child has an arena's {arena_descriptors(child)}")
    check("shares_with_less" not in side.why(), side.why())


def check_serves_on(side, master, port, count):
    """The master answers through the port, with its own descriptors and arena."""
    for _ in range(count):
        ask(side, port)
    check(side.soon(lambda: side.stat(master)["counters"]["tcp_passive_opens"] >= count, 5), f"not by the master: {side.why()}")
    check(not drivers(side), f"the ports have a driver: {drivers(side)}")
    check_apart(side, master)


def helper_comes_first(side, how):
    """The child has taken the port with it. The master gets the port back when it waits at its listener."""
    port = free_port()
    master = side.start_python("server", "serves_beside.py", side.address, port, how, 0, until="waits")
    side.until(lambda: not drivers(side), "the port is the master's again")
    check_serves_on(side, master, port, 3)


def helper_comes_later(side, how):
    """The master has accepted before. So it keeps its port."""
    port = free_port()
    master = side.start_python("server", "serves_beside.py", side.address, port, how, 1, until="waits")
    ask(side, port)
    side.wait_for(master, "waits 1")
    check_serves_on(side, master, port, 3)


@case("vhost", "veth")
def helper_beside_one_that_accepts(side):
    helper_comes_first(side, "accept")


@case("vhost", "veth")
def helper_beside_one_that_polls(side):
    helper_comes_first(side, "poll")


@case("veth")
def helper_beside_one_that_selects(side):
    helper_comes_first(side, "select")


@case("vhost", "veth")
def helper_beside_one_that_makes_an_epoll_set(side):
    helper_comes_first(side, "epoll")


@case("vhost", "veth")
def helper_of_one_that_has_accepted(side):
    helper_comes_later(side, "accept")


@case("veth")
def helper_of_one_that_has_polled(side):
    helper_comes_later(side, "poll")


@case("veth")
def helper_of_one_with_an_epoll_set(side):
    helper_comes_later(side, "epoll")


def child_for_each_connection(side, how):
    """The child has inherited the listener and never uses it. Its own connection works with neither root's memory nor root's
    port."""
    port = free_port()
    master = side.start_python("server", "serves_beside.py", side.address, port, how, 0, "each", until="waits")
    for _ in range(3):
        side.start_python("client", "asks_and_stays.py", side.address, port, until="answered")
    check(len(children_of(master.pid)) == 3, "no child for each connection")
    check_serves_on(side, master, port, 3)


@case("veth")  # a vhost: port has one peer, and each client here is one
def child_for_each_that_is_accepted(side):
    child_for_each_connection(side, "accept")


@case("veth")
def child_for_each_that_is_polled(side):
    child_for_each_connection(side, "poll")


@case("veth")
def child_for_each_that_an_epoll_set_tells(side):
    child_for_each_connection(side, "epoll")


@case("vhost", "veth")
def worker_beside_one_that_accepts(side):
    """The worker has accepted first, so the port stays with it. It goes on serving, although its master asks for the port."""
    port = free_port()
    master = side.start_python("server", "serves_beside.py", side.address, port, "accept", 0, "works", until="works")
    ask(side, port)
    side.wait_for(master, "waits")
    for _ in range(3):
        ask(side, port)
    check(65534 in drivers(side), f"no driver serves the worker: {side.why()}")
    check_apart(side, master)


if __name__ == "__main__":
    run_named(CASES, "shown")

"""What is promised beyond the programs' own results: surviving the other end's death, idleness, system calls, exit,
progress, bad configuration.   behaviour.py NAME...   (no name: lists them)"""
import contextlib
import hashlib
import os
import random
import resource
import signal
import subprocess
import time

import guardian
from harness import (BUILD, HERE, LIB, LONG, NETBENCH, Side, Skip, calls_between_marks, check, compare, cpu_use, free_port,
                     run_named)
from sides import WIRES

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def echo_server(side, role, address):
    port = free_port()
    server = side.start_python(role, "asyncio_echo.py", "server", address, port, until="ready")
    return server, port


def ends(side, server_role):
    """The other end's role and the server's address, for a server at `server_role`'s end of the wire."""
    return {"server": ("client", side.address), "client": ("server", side.client_address)}[server_role]


ROUNDS = 200 if LONG else 20


def survive_kills(server_role):
    """Kills the client under load, again and again. The server stays and serves the next client."""
    with Side("bypass") as side:
        client_role, address = ends(side, server_role)
        server, port = echo_server(side, server_role, address)
        for i in range(ROUNDS):
            client = side.start_python(client_role, "flood.py", address, port, 0, until="running")
            side.kill(client, signal.SIGKILL)
            check(server.poll() is None, f"the server ended with {server.poll()} after round {i}")
        out = side.python(client_role, "flood.py", address, port, 50)
        check(out.split()[-1] == b"50", out)


HANDS_ON = """
import os, signal, socket, sys
if len(sys.argv) < 4:
    print("handed on", flush=True)
    signal.pause()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
listener.set_inheritable(True)
if sys.argv[3] == "child" and os.fork() != 0: os.wait()
else: os.execve(sys.executable, [sys.executable, __file__, str(listener.fileno())], {**os.environ, "BYPASS_LOG": "info"})
"""


def tells_what_exec_hands_on(way):
    """An image inherits a listener on a port, and cannot go on with it. In that image `bypass why` tells of it."""
    with Side("bypass") as side:
        with open(side.path("hands_on.py"), "w") as file:
            file.write(HANDS_ON)
        port = free_port()
        side.start("server", "/usr/bin/python3", side.path("hands_on.py"), side.address, port, way, until="handed on")
        why = side.run("server", os.path.join(BUILD, "bypass"), "why", LD_PRELOAD="").decode()
        check("escaped_exec" in why and f"{side.address}:{port}" in why and "other settings" in why, why)


@case
def listener_handed_on_by_exec(): tells_what_exec_hands_on("itself")


@case
def listener_handed_on_by_fork_and_exec(): tells_what_exec_hands_on("child")


@case
def virtio_client_killed(): survive_kills("server")


@case
def vhost_client_killed(): survive_kills("client")


def sent_again(side, child):
    """How often a process has sent something again. By that it notices a peer that does not answer."""
    return sum(side.stat(child)["counters"].get(name, 0) for name in ("tcp_retransmits", "tcp_zero_window_probes"))


def freeze(side, server, client):
    """Stops the client. Returns when the server, which is sending to it, has noticed."""
    before = sent_again(side, server)
    os.killpg(client.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while sent_again(side, server) == before:
        check(server.poll() is None, f"the server ended with {server.poll()}")
        check(time.monotonic() < deadline, "the server did not notice that its peer is frozen")
        time.sleep(0.02)


def survive_freezes(server_role):
    """Stops the client under load and then kills it. The server stays and serves the next client."""
    with Side("bypass") as side:
        client_role, address = ends(side, server_role)
        port = free_port()
        server = side.start_python(server_role, "stream.py", "server", address, port, until="ready")
        for i in range(ROUNDS):
            client = side.start_python(client_role, "stream.py", "client", address, port, 0, until="running")
            freeze(side, server, client)
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
            check(server.poll() is None, f"the server ended with {server.poll()} after round {i}")
        side.python(client_role, "stream.py", "client", address, port, 1 << 20)


@case
def virtio_client_frozen_and_killed(): survive_freezes("server")


@case
def vhost_client_frozen_and_killed(): survive_freezes("client")


def goes_on(server_role):
    """A peer that was stopped for a while finds its connection unchanged."""
    with Side("bypass") as side:
        client_role, address = ends(side, server_role)
        port = free_port()
        server = side.start_python(server_role, "stream.py", "server", address, port, until="ready")
        client = side.start_python(client_role, "stream.py", "client", address, port, 0, until="running")
        for _ in range(3):
            freeze(side, server, client)
            os.killpg(client.pid, signal.SIGCONT)
            got = port_counters(side, client)["rx_bytes"]
            side.until(lambda: port_counters(side, client)["rx_bytes"] > got + (1 << 20), "the stream goes on")
        check(client.poll() is None, side.output(client))


def port_counters(side, child):
    return side.stat(child)["ports"][0]


@case
def frozen_virtio_peer_goes_on(): goes_on("server")


@case
def frozen_vhost_peer_goes_on(): goes_on("client")


def dead_link(client_role, how, user_timeout, **settings):
    """The other end is killed, has no keeper, and does not come back. The socket's call fails with ETIMEDOUT, at the right time."""
    server_role = {"server": "client", "client": "server"}[client_role]
    with Side("bypass") as side:
        _, address = ends(side, server_role)
        port, fifo = free_port(), side.path("go")
        os.mkfifo(fifo)
        server = side.start_python(server_role, "sink.py", address, port, 1, until="ready", BYPASS_KEEPER="off")
        client = side.start_python(client_role, "dead_link.py", address, port, fifo, how, user_timeout, until="connected", **settings)
        side.kill(server, signal.SIGKILL)
        open(fifo, "w").close()
        check(side.end(client, 30) == 0, side.output(client))
        error, after = side.output(client).split()[-2:]
        check(error == "ETIMEDOUT", side.output(client))
        # Three retransmissions 50, 100 and 200 ms apart, and 400 ms for the last one's answer; or the option's 700.
        check(600 <= int(after) <= 5000, f"after {after} ms")


FEW_RETRIES = dict(BYPASS_TCP_RETRIES2="3", BYPASS_TCP_RTO_MIN_US="50000", BYPASS_TCP_RTO_MAX_MS="1000")


@case
def dead_link_ends_in_etimedout():
    for role in ("client", "server"):
        for how in ("send", "recv"):
            dead_link(role, how, 0, **FEW_RETRIES)


@case
def dead_link_ends_by_tcp_user_timeout():
    for role in ("client", "server"):
        dead_link(role, "recv", 700, BYPASS_TCP_RTO_MIN_US="50000")


def last_words_arrive(client_role):
    size, ways = 3 << 20, ["exit", "_exit", "return"]
    expected = f"{size} {hashlib.sha256(random.Random(3).randbytes(size)).hexdigest()}"
    server_role = {"server": "client", "client": "server"}[client_role]
    with Side("bypass") as side:
        _, address = ends(side, server_role)
        port = free_port()
        sink = side.start_python(server_role, "sink.py", address, port, len(ways), until="ready")
        for way in ways:
            side.python(client_role, "last_words.py", address, port, size, way)
        check(side.end(sink) == 0, "the sink failed")
        arrived = [line for line in side.output(sink).split("\n") if line.startswith(f"{size} ")]  # the log may stand between
        check(arrived == [expected] * 3, side.output(sink))


@case
def virtio_exit_loses_nothing(): last_words_arrive("client")


@case
def vhost_exit_loses_nothing(): last_words_arrive("server")


def answered_and_ended(side):
    """What clients get from a server that ends with a part of the question unread."""
    got = []
    for how in ("return", "_exit", "return", "_exit"):
        port, fifo = free_port(), side.path(f"ended{len(got)}")
        os.mkfifo(fifo)
        server = side.start_python("server", "answering_at_last.py", "server", side.address, port, how, until="ready")
        client = side.start_python("client", "answering_at_last.py", "client", side.address, port, fifo)
        check(side.end(server) == 0, "the server failed")
        open(fifo, "w").close()
        check(side.end(client, 60) == 0, "the client failed")
        got.append([line for line in side.output(client).split("\n") if "too large" in line or "Error" in line or ", end" in line])
    return got


@case
def an_answer_comes_before_the_reset():
    sides = [*WIRES["local"], *WIRES["vhost"], *WIRES["virtio"]]
    compare(answered_and_ended, *sides, uses_fast_path=False)


@case
def exit_shows_nothing_to_other_threads():
    """A process that ends while its threads send and receive ends with its own status: no SIGPIPE, no error, no crash."""
    for name in ("bypass", "local"):
        with Side(name) as side:
            _, port = echo_server(side, "server", side.address)
            for i in range(6):
                out = side.python("client", "exit_beside_threads.py", side.address, port, ["exit", "_exit"][i % 2])
                check(out == b"", out)


@case
def progress_while_computing():
    """A server computes and makes no call. It still answers SYNs and acknowledges."""
    with Side("bypass") as side:
        port, flag = free_port(), side.path("flag")
        server = side.start_python("server", "busy_server.py", side.address, port, flag)
        side.wait_port(port)
        side.wait_for(server, "computing")
        out = side.python("client", "patient_client.py", side.address, port)
        check(out == b"acknowledged\n", out)
        check("got" not in side.output(server), "the server was not computing")
        open(flag, "w").close()
        check(side.end(server) == 0 and "got b'xxx" in side.output(server), side.output(server))


def children_cpu():
    """Seconds of CPU time of all children that have ended."""
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


@case
def million_ping_pongs_without_system_calls():
    with Side("bypass", profile="latency") as side:
        port, count = free_port(), 1000000
        common = ["--mark", "--count", count]
        # Yields that are not counted must not stop at the tracer: each stop would take longer than a round trip.
        trace = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=!sched_yield", "-o"]
        server = side.start("server", *trace, side.path("server.trace"), "-E", f"LD_PRELOAD={LIB}", NETBENCH, "pingpong", "server",
                            side.address, port, "--cpu", 0, *common, until="ready", LD_PRELOAD="")
        began, used = time.monotonic(), children_cpu()
        side.run("client", *trace, side.path("client.trace"), "-E", f"LD_PRELOAD={LIB}", NETBENCH, "pingpong", "client", side.address,
                 port, "--cpu", 1, *common, timeout=250, LD_PRELOAD="")
        side.end(server)
        # Both spin. A process that waits for a processor looks like one that computes, so the progress thread serves its wire.
        alone = (children_cpu() - used) / (time.monotonic() - began) > 1.8
        most = count // (1000 if alone else 50)
        for name in ("server", "client"):
            calls = calls_between_marks(side.path(f"{name}.trace"))
            check(len(calls) < most, f"{name}: {len(calls)} system calls: " + "\n".join(calls[:40]))


@case
def idle_ends_use_no_cpu():
    """At most 5 ms in 5 s, if a wake-up costs 0.15 ms. Beside a build a wake-up costs up to 0.8 ms. Then wake-ups are
    counted: some 33, and a few more where a thread has waited for a lock or a page."""
    with contextlib.ExitStack() as sides:
        pids, ends = {}, []
        for profile in ("balanced", "cpu"):
            side = sides.enter_context(Side("bypass", profile=profile))
            server, port = echo_server(side, "server", side.address)
            side.python("client", "flood.py", side.address, port, 5)
            client = side.start("client", NETBENCH, "idle", "client", side.address, port, "--count", 1, until="connected",
                                stdin=subprocess.PIPE)
            pids |= {f"profile {profile}, vhost": server.pid, f"profile {profile}, virtio": client.pid}
            ends += [server, client]
        time.sleep(1)  # quiet before the measurement; this synchronises nothing
        before = {end: cpu_use(pid) for end, pid in pids.items()}
        time.sleep(5)
        check(all(child.poll() is None for child in ends), "an end is gone")
        for end, pid in pids.items():
            used, turns = (after - was for after, was in zip(cpu_use(pid), before[end]))
            check(used <= 5 or (turns <= 50 and used <= 40), f"{end}: {used} ms in 5 s, in {turns} turns")


BAD = [
    # variables, what the message must name
    ({"BYPASS_PROT": "vhost:/tmp/x"}, ["BYPASS_PROT", "BYPASS_PORT"]),
    ({"BYPASS_PORT": "vhots:/tmp/x"}, ["BYPASS_PORT", "vhots", "vhost:PATH"]),
    ({"BYPASS_ADDR": "10.9.0.1/240"}, ["BYPASS_ADDR", "10.9.0.1/240"]),
    ({"BYPASS_ADDR": "ten.nine"}, ["BYPASS_ADDR", "ten.nine"]),
    ({"BYPASS_PROFILE": "fast"}, ["BYPASS_PROFILE", "fast", "balanced"]),
    ({"BYPASS_PORT": "dpdk:net_nosuch0"}, ["net_nosuch"]),
    ({"BYPASS_PORT": "vhost:/proc/nowhere/wire"}, ["/proc/nowhere"]),
    ({"BYPASS_PORT": "pci:0000:7f:1f.7"}, ["pci:0000:7f:1f.7", "lspci -D"]),
    ({"BYPASS_PORT": "verbs:mlx5_0"}, ["verbs"]),
    ({"BYPASS_MEMORY": "4K"}, ["BYPASS_MEMORY", "4K"]),
    ({"BYPASS_CONFIG": "/nonexistent/bypass.toml"}, ["BYPASS_CONFIG", "/nonexistent/bypass.toml"]),
]


@case
def bad_configuration_is_named_and_survived():
    with Side("bypass") as side:
        script = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); " \
                 "s.accept()[0].send(b'kernel'); print(c.recv(10)); u = socket.socket(); u.settimeout(1); " \
                 "print(u.connect_ex(('10.9.0.2', 9)) != 0)"
        for change, words in BAD:
            command = ["/usr/bin/python3", "-c", script]
            for strict in ("", "1"):
                env = side.environment("server", **change)
                if strict:
                    env["BYPASS_STRICT"] = "1"
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
                named = all(word in done.stderr for word in words)
                check(named, f"{change}: the message does not name {words}: {done.stderr!r}")
                if strict:
                    check(done.returncode == 78, f"{change} with BYPASS_STRICT=1: exit {done.returncode}, not 78")
                else:
                    check(done.returncode == 0 and done.stdout.startswith("b'kernel'"),
                          f"{change}: the program did not go on: {done.returncode} {done.stdout!r} {done.stderr!r}")


@case
def path_that_another_process_serves_is_in_use():
    """For example `nginx -t` beside a running nginx: bind() fails with the error that such programs know."""
    with Side("bypass") as side:
        port = free_port()
        echo_server(side, "server", side.address)
        said = side.python("server", "bind_listen.py", side.address, port, port)
        check(said.split() == [b"EADDRINUSE"] * 2, said)


def serves_after(change, **options):
    """A program changes its environment or its limits. It still has its sockets on the port, and as much room as without
    the library."""
    with Side("bypass", **options) as side:
        port = free_port()
        server = side.start_python("server", "after_changes.py", change, side.address, port, until="ready")
        said = side.run("client", "/usr/bin/python3", "-c", "import socket, sys\n"
                        "print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).makefile().read())", side.address, port)
        check(said.split() == [b"16777216"] and side.end(server) == 0, (said, side.output(server)))


@case
def environment_cleared_before_the_first_socket(): serves_after("environment", soft=True, rdma=True)


@case
def address_space_limited_with_an_open_port(): serves_after("address_space")


def whys(side, child):
    return [(why["reason"], why["address"], why["fd"] >= 0) for why in side.bypass("why", child)["whys"]]


def established(side, child):
    sockets = side.stat(child)["sockets"]
    return [(s["local"], s["remote"]) for s in sockets if s["state"] == "ESTABLISHED" and s["path"] == "wire"]


@case
def stat_and_why_tell_the_truth():
    with Side("bypass") as side:
        server, port = echo_server(side, "server", side.address)
        client = side.start_python("client", "flood.py", side.address, port, 0, until="running")
        # What is shown may be some milliseconds old. So this waits until both ends show the connection.
        for child in (server, client):
            side.until(lambda: established(side, child), "the connection is shown")
        seen, sent = port_counters(side, server), port_counters(side, client)
        check(seen["port"] == f"vhost:{side.path('wire')}" and seen["addresses"] == [f"{side.address}/24"], seen)
        check(sent["port"] == f"virtio:{side.path('wire')}" and seen["open"] and sent["link"] == "up", sent)
        side.until(lambda: port_counters(side, client)["tx_bytes"] >= seen["rx_bytes"] > 0, "what was received has been sent")
        side.until(lambda: port_counters(side, server)["rx_frames"] > seen["rx_frames"], "more frames are counted")
        mine, theirs = established(side, client), established(side, server)
        check(mine == [(there, here) for here, there in theirs] and mine[0][1] == f"{side.address}:{port}", f"{mine} {theirs}")
        listening = [s["local"] for s in side.stat(server)["sockets"] if s["state"] == "LISTEN"]
        check(listening == [f"{side.address}:{port}"], listening)
        # No socket is the kernel's. The reason is noted that a faster path is off.
        for child in (server, client):
            check(whys(side, child) == [("no_rdma", "-", False), ("no_shm_link", "-", False)], whys(side, child))


@case
def why_names_the_reason_of_a_kernel_socket():
    with Side("bypass") as side:
        port = free_port()
        plain = side.start_python("client", "asyncio_echo.py", "server", "127.0.0.1", port, until="ready")
        check(("loopback", f"127.0.0.1:{port}", True) in whys(side, plain), whys(side, plain))
        port = free_port()
        ruled = side.start_python("server", "asyncio_echo.py", "server", "0.0.0.0", port, until="ready",
                                  BYPASS_RULES=f"kernel tcp listen *:{port}")
        check(("rule_kernel", f"*:{port}", True) in whys(side, ruled), whys(side, ruled))


@case
def installed_layout_works():
    """The files that `cmake --install` makes work by themselves: the library finds its plugins, and the command finds its
    processes."""
    with Side("bypass") as side:
        prefix = side.path("prefix")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        found = [os.path.join(folder, "libbypass.so") for folder, _, files in os.walk(prefix) if "libbypass.so" in files]
        check(len(found) == 1, f"libbypass.so: {found}")
        command, preload = os.path.join(prefix, "bin", "bypass"), {"LD_PRELOAD": found[0]}
        port = free_port()
        server = side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready", **preload)
        out = side.python("client", "flood.py", side.address, port, 50, **preload)
        check(out.split()[-1] == b"50", out)
        maps = open(f"/proc/{server.pid}/maps").read()
        libraries = {line.split()[-1] for line in maps.splitlines() if "/libbypass" in line}
        check(len(libraries) >= 2 and all(path.startswith(prefix) for path in libraries), libraries)
        side.until(lambda: any(p["rx_frames"] for p in side.bypass("stat", server, command)["ports"]), "stat knows of the server")
        settings = side.run("server", command, "config", LD_PRELOAD="").decode()
        check("BYPASS_PORT" in settings and side.path("wire") in settings, settings)


@case
def killed_test_leaves_nothing():
    """A case is killed in the middle, as one that takes too long is. Its guardian ends what it has started."""
    if os.geteuid() != 0:
        raise Skip("only root makes network namespaces")
    test = subprocess.Popen(["/usr/bin/python3", os.path.join(HERE, "programs.py"), "curl_and_wget_veth"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def namespaces():
        return [name for name in os.listdir("/run/netns") if f"-{test.pid}-" in name]

    def folders():
        for name in namespaces():
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(OSError):
                    at = os.readlink(f"/proc/{pid}/cwd")
                    if os.path.basename(at).startswith("bypass-test-"):
                        yield at

    deadline = time.monotonic() + 30
    while not (folder := next(folders(), None)):
        check(test.poll() is None and time.monotonic() < deadline, f"no program of the case's is to be seen; exit {test.poll()}")
        time.sleep(0.005)
    test.kill()
    test.wait()
    while namespaces() or os.path.exists(folder) or guardian.inhabitants(folder):
        check(time.monotonic() < deadline, f"left: {namespaces()} {folder} {guardian.inhabitants(folder)}")
        time.sleep(0.02)


run_named(CASES, "shown")

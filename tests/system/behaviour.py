"""What is owed beyond the programs' own results: survival of the other end's death, idleness, system calls, exit,
progress, bad configuration.   behaviour.py NAME...   (no name: lists them)"""
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback

from harness import BUILD, LIB, LONG, Side, check, free_port

CASES = {}
NETBENCH = os.path.join(BUILD, "bin", "netbench")


def case(function):
    CASES[function.__name__] = function
    return function


def echo_server(side, role, address):
    port = free_port()
    server = side.start_python(role, "asyncio_echo.py", "server", address, port, until="ready")
    return server, port


def survive(how, server_role):
    """Kills or freezes the client 20 times under load; the server stays and serves the next."""
    client_role = {"server": "client", "client": "server"}[server_role]
    with Side("bypass") as side:
        address = {"server": side.address, "client": side.client_address}[server_role]
        server, port = echo_server(side, server_role, address)
        for i in range(200 if LONG else 20):
            client = side.start_python(client_role, "flood.py", address, port, 0, until="running")
            if how == signal.SIGSTOP:
                os.killpg(client.pid, signal.SIGSTOP)
            side.kill(client, signal.SIGKILL)
            check(server.poll() is None, f"the server ended with {server.poll()} after round {i}")
        out = side.python(client_role, "flood.py", address, port, 50)
        check(out.split()[-1] == b"50", out)


@case
def virtio_client_killed(): survive(signal.SIGKILL, "server")


@case
def vhost_client_killed(): survive(signal.SIGKILL, "client")


@case
def virtio_client_frozen_and_killed(): survive(signal.SIGSTOP, "server")


@case
def frozen_peer_goes_on():
    """A peer that is stopped for a while finds its connection as it was."""
    with Side("bypass") as side:
        _, port = echo_server(side, "server", side.address)
        client = side.start_python("client", "flood.py", side.address, port, 400, until="running")
        os.killpg(client.pid, signal.SIGSTOP)
        time.sleep(1)  # how long it is frozen: long enough for retransmissions
        os.killpg(client.pid, signal.SIGCONT)
        check(side.end(client, 60) == 0 and "echoed 400" in side.output(client), side.output(client))


@case
def exit_loses_nothing():
    size = 3 << 20
    expected = f"{size} {hashlib.sha256(random.Random(3).randbytes(size)).hexdigest()}"
    with Side("bypass") as side:
        port = free_port()
        ways = ["exit", "_exit", "return"]
        sink = side.start_python("server", "sink.py", side.address, port, len(ways), until="ready")
        for way in ways:
            side.python("client", "last_words.py", side.address, port, size, way)
        check(side.end(sink) == 0, "the sink failed")
        check(side.output(sink).split("\n")[1:4] == [expected] * 3, side.output(sink))


@case
def progress_while_computing():
    """A server that computes without a call answers SYNs and acknowledges all the same."""
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


def calls_between_marks(trace):
    inside, calls = False, []
    for line in open(trace, errors="replace"):
        if "/netbench-begin" in line:
            inside = True
        elif "/netbench-end" in line:
            return calls
        elif inside and "sched_yield" not in line and "resumed>" not in line:
            calls.append(line.strip())
    raise AssertionError(f"no marks in {trace}")


@case
def million_ping_pongs_without_system_calls():
    with Side("bypass", profile="latency") as side:
        port, count = free_port(), 1000000
        common = ["--mark", "--count", count]
        trace = ["strace", "-f", "-qq", "-o"]
        server = side.start("server", *trace, side.path("server.trace"), "-E", f"LD_PRELOAD={LIB}", NETBENCH, "pingpong", "server",
                            side.address, port, "--cpu", 0, *common, until="ready", LD_PRELOAD="")
        side.run("client", *trace, side.path("client.trace"), "-E", f"LD_PRELOAD={LIB}", NETBENCH, "pingpong", "client", side.address,
                 port, "--cpu", 1, *common, timeout=250, LD_PRELOAD="")
        side.end(server)
        for name in ("server", "client"):
            calls = calls_between_marks(side.path(f"{name}.trace"))
            check(len(calls) < 100, f"{name}: {len(calls)} system calls: " + "\n".join(calls[:40]))


def cpu_ms(pid):
    """CPU time of all threads of a process, from the scheduler's own nanoseconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e6


@case
def idle_server_uses_no_cpu():
    for profile in ("balanced", "cpu"):
        with Side("bypass", profile=profile) as side:
            server, port = echo_server(side, "server", side.address)
            side.python("client", "flood.py", side.address, port, 5)
            client = side.start("client", NETBENCH, "idle", "client", side.address, port, "--count", 1, until="connected")
            time.sleep(1)  # the quiet before the measurement; nothing is waited for
            before = cpu_ms(server.pid)
            time.sleep(10)
            used = cpu_ms(server.pid) - before
            check(used <= 10, f"profile {profile}: {used:.1f} ms of CPU in 10 s")
            del client


BAD = [
    # variables, what the message must name
    ({"BYPASS_PROT": "vhost:/tmp/x"}, ["BYPASS_PROT", "BYPASS_PORT"]),
    ({"BYPASS_PORT": "vhots:/tmp/x"}, ["BYPASS_PORT", "vhots", "vhost:PATH"]),
    ({"BYPASS_ADDR": "10.9.0.1/240"}, ["BYPASS_ADDR", "10.9.0.1/240"]),
    ({"BYPASS_ADDR": "ten.nine"}, ["BYPASS_ADDR", "ten.nine"]),
    ({"BYPASS_PROFILE": "fast"}, ["BYPASS_PROFILE", "fast", "balanced"]),
    ({"BYPASS_PORT": "dpdk:net_nosuch0"}, ["net_nosuch"]),
    ({"BYPASS_PORT": "vhost:/proc/nowhere/wire"}, ["/proc/nowhere"]),
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


def main():
    if len(sys.argv) < 2:
        print("\n".join(CASES))
        return
    for name in sys.argv[1:]:
        try:
            CASES[name]()
            print(f"{name}: shown")
        except Exception:
            traceback.print_exc()
            sys.exit(1)


main()

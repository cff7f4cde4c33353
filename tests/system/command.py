"""The bypass command beside live processes: `bypass run` starts them, `bypass ss` shows their sockets.
command.py NAME...   (no name: lists them)"""
import json
import os
import re

from harness import BUILD, HERE, Side, check, free_port, run_named

CASES = {}
BYPASS = os.path.join(BUILD, "bypass")


def case(function):
    CASES[function.__name__] = function
    return function


def start_by_run(side, role, script, *arguments, until):
    """A script of peers/ by `bypass run`, which alone says where the wire is."""
    address = {"server": side.address, "client": side.client_address}[role]
    return side.start(role, BYPASS, "run", "--port", f"{side.kinds[role]}:{side.path('wire')}", "--addr", f"{address}/24",
                      "--run-dir", side.path("run"), "--strict", "--", "/usr/bin/python3", "-u",
                      os.path.join(HERE, "peers", script), *arguments, until=until,
                      LD_PRELOAD="", BYPASS_PORT="", BYPASS_ADDR="", BYPASS_RUN_DIR="")


def ss(side, *arguments):
    return side.run("server", BYPASS, "ss", *arguments, LD_PRELOAD="").decode().splitlines()


@case
def ss_shows_both_ends_of_what_run_started():
    with Side("bypass") as side:
        port, udp_port = free_port(), free_port()
        server = start_by_run(side, "server", "stream.py", "server", side.address, port, until="ready")
        echo = side.start_python("server", "udp_echo.py", "server", side.address, udp_port, until="ready",
                                 BYPASS_PORT=f"vhost:{side.path('other')}")
        client = start_by_run(side, "client", "stream.py", "client", side.address, port, 0, until="running")
        users = {name: f'users:\\(\\("python3",pid={child.pid},fd=\\d+\\)\\)'
                 for name, child in (("server", server), ("echo", echo), ("client", client))}
        here, there = re.escape(f"{side.address}:{port}"), re.escape(side.client_address) + r":\d+"
        rows = [rf"LISTEN +0 +\d+ +{here} +0\.0\.0\.0:\* +{users['server']}", rf"ESTAB +\d+ +\d+ +{here} +{there} +{users['server']}",
                rf"ESTAB +\d+ +\d+ +{there} +{here} +{users['client']}"]
        shown = rf"tcp +{rows[0]}", rf"tcp +{rows[1]}", rf"tcp +{rows[2]}", rf"udp +UNCONN +0 +0 +{re.escape(side.address)}:{udp_port} +0\.0\.0\.0:\* +{users['echo']}"

        def listed(lines, patterns):
            return len(lines) == len(patterns) and all(any(re.fullmatch(p, line) for line in lines) for p in patterns)

        # A process writes its sockets down some milliseconds after they have changed.
        side.until(lambda: listed(ss(side, "-Htuanp"), shown), "ss lists the four sockets: " + "\n".join(ss(side, "-tuanp")))
        check(ss(side, "-tan")[0].split() == "State Recv-Q Send-Q Local Address:Port Peer Address:Port".split(), ss(side, "-tan"))
        check(listed(ss(side, "-Htanp", "dport", "=", f":{port}"), rows[2:]), ss(side, "-Htanp", f"dport = :{port}"))
        check(listed(ss(side, "-Htlnp"), rows[:1]), ss(side, "-Htlnp"))
        told = r"rto:[\d.]+ rtt:[\d.]+/[\d.]+ mss:\d+ cwnd:\d+ .*bytes_received:\d+"  # once something has come
        info = lambda: ss(side, "-Htni", "--pid", client.pid, "state", "established")
        side.until(lambda: re.search(told, info()[1]), "ss tells of the connection's bytes")
        sockets = json.loads("\n".join(ss(side, "-ta", "--json", f"sport = :{port}")))["sockets"]
        check(sorted(s["state"] for s in sockets) == ["ESTAB", "LISTEN"], sockets)
        side.kill(client)
        check(ss(side, "-Htan", f"dport = :{port}") == [], "what a dead process left is no socket")


@case
def run_leaves_a_program_without_a_wire_to_itself():
    """Settings that have no use here do not keep a program from its result; wrong ones do, before it begins."""
    with Side("kernel") as side:
        out = side.run("server", BYPASS, "run", "--config", side.path("empty.toml"), "/usr/bin/python3", "-c", "print('ran')")
        check(out == b"ran\n", out)
        side.run("server", BYPASS, "run", "--port", "vhost:/tmp/x", "--", "/usr/bin/python3", "-c", "print('ran')", expect=125)


run_named(CASES, "as promised")

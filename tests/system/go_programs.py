"""Programs of Go, whose runtime makes system calls without libc: as on the kernel's sockets.
go_programs.py NAME...   (no name: lists them)"""
import os
import re
import shutil
import signal
import subprocess

from harness import Side, Skip, check, free_port, run_named
from sides import leaves_nobody_to_ask, on, vhost

SCENARIOS = {}


def scenario(*wires):
    return on(SCENARIOS, *wires)


def case(function):
    SCENARIOS[function.__name__] = function
    return function


def needs(program):
    if shutil.which(program) is None:
        raise Skip(f"no {program}")
    return program


def start_nats(side, *options, **extra):
    port = free_port()
    server = side.start("server", needs("nats-server"), "-a", side.address, "-p", port, *options, until="Server is ready", **extra)
    side.wait_port(port)
    return server, port


@scenario("vhost", "virtio", "local", "veth")
def nats(side):
    """40 connections, and as many goroutines that read and write."""
    server, port = start_nats(side)
    return side.python("client", "nats.py", side.address, port, 40, 30)


def count_answers(side, address, *options):
    """What Go's own client of HTTP, hey, says of its answers."""
    text = side.run("client", needs("hey"), *options, address, timeout=100).decode()
    return sorted(re.findall(r"\[\d+\]\t\d+ responses|.*error.*", text))


CADDY = """{{
  admin off
  auto_https off
}}
http://{address}:{port} {{
  root * {dir}/www
  file_server
}}
"""


def start_caddy(side, **extra):
    port = free_port()
    os.makedirs(side.path("www"), exist_ok=True)
    with open(side.path("www/page"), "w") as file:
        file.write("a line of the page\n" * 500)
    with open(side.path("Caddyfile"), "w") as file:
        file.write(CADDY.format(address=side.address, port=port, dir=side.dir))
    server = side.start("server", needs("caddy"), "run", "--adapter", "caddyfile", "--config", side.path("Caddyfile"), HOME=side.dir,
                        XDG_DATA_HOME=side.dir, XDG_CONFIG_HOME=side.dir, **extra)
    side.wait_port(port)
    return server, port


@scenario("vhost", "local", "veth")
def both_ends_of_go(side):
    """Many requests over few connections, and a connection for each request."""
    server, port = start_caddy(side)
    page = f"http://{side.address}:{port}/page"
    return count_answers(side, page, "-n", 3000, "-c", 50), count_answers(side, page, "-n", 200, "-c", 20, "-disable-keepalive")


@case
def switched_off():
    """BYPASS_RAW_CALLS=off: nats-server runs on the kernel's sockets, and `bypass why` says so."""
    with vhost("vhost")() as side:
        port = free_port()
        server = side.start("server", needs("nats-server"), "-a", "127.0.0.1", "-p", port, until="Server is ready", BYPASS_RAW_CALLS="off")
        check("BYPASS_RAW_CALLS is off" in side.why(server), side.why(server))
        side.python("client", "nats.py", "127.0.0.1", port, 2, 2, LD_PRELOAD="")


run_named(SCENARIOS, "same on both sides")

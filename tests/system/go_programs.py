"""Programs of Go, whose runtime makes system calls without libc: as on the kernel's sockets.
go_programs.py NAME...   (no name: lists them)"""
import os
import re
import shutil
import signal

from harness import Skip, check, free_port, run_named
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


def write(side, name, text):
    with open(side.path(name), "w") as file:
        file.write(text)
    return side.path(name)


def home(side):
    return {name: side.dir for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}


def write_caddyfile(side, port):
    os.makedirs(side.path("www"), exist_ok=True)
    write(side, "www/page", "a line of the page\n" * 500)
    return write(side, "Caddyfile", CADDY.format(address=side.address, port=port, dir=side.dir))


def start_caddy(side):
    port = free_port()
    file = write_caddyfile(side, port)
    server = side.start("server", needs("caddy"), "run", "--adapter", "caddyfile", "--config", file, **home(side))
    side.wait_port(port)
    return server, port


@scenario("vhost", "local", "veth")
def both_ends_of_go(side):
    """Many requests over few connections, and a connection for each request."""
    server, port = start_caddy(side)
    page = f"http://{side.address}:{port}/page"
    return count_answers(side, page, "-n", 3000, "-c", 50), count_answers(side, page, "-n", 200, "-c", 20, "-disable-keepalive")


FORWARDER = """{{
  admin off
  auto_https off
}}
http://127.0.0.1:{front} {{
  reverse_proxy {address}:{port}
}}
"""


@scenario("vhost", "virtio", "veth")
def forwards(side):
    """caddy's server is at the other end of the wire. Its clients use the kernel."""
    port, front = free_port(), free_port()
    side.start_python("server", "web.py", "server", side.address, port, until="ready")
    file = write(side, "Caddyfile", FORWARDER.format(front=front, address=side.address, port=port))
    side.start("client", needs("caddy"), "run", "--adapter", "caddyfile", "--config", file, **home(side))
    side.run("client", "curl", "-sS", "--retry", 20, "--retry-all-errors", "--retry-delay", 1, "-o", "got", f"http://127.0.0.1:{front}/0", LD_PRELOAD="")
    return side.python("client", "web.py", "client", "127.0.0.1", front, LD_PRELOAD="")


@scenario("vhost", "local")
def many_connections(side):
    """A thousand connections at once."""
    server, port = start_caddy(side)
    return count_answers(side, f"http://{side.address}:{port}/page", "-n", 2000, "-c", 1000, "-t", 60)


@scenario("vhost", "local")
def interrupted_by_a_profile(side):
    """SIGPROF comes as fast as Go's profiler sends it, while the connections are served. The profile comes over a
    connection, too."""
    profile = free_port()
    server, port = start_nats(side, "--profile", profile)
    fetched = side.start("client", "curl", "-sS", "-o", "got", "-w", "%{http_code}\n", f"http://{side.address}:{profile}/debug/pprof/profile?seconds=1")
    results = [side.python("client", "nats.py", side.address, port, 20, 20) for _ in range(2)]
    check(side.end(fetched, 60) == 0, side.output(fetched))
    with open(side.path("got"), "rb") as got:
        return results, side.output(fetched), got.read(2) == b"\x1f\x8b"


@scenario("vhost", "local")
@leaves_nobody_to_ask
def tells_where_it_is(side):
    """SIGQUIT ends it, and Go tells what each goroutine does."""
    server, port = start_nats(side)
    side.python("client", "nats.py", side.address, port, 2, 2)
    server.send_signal(signal.SIGQUIT)
    code, text = side.end(server), side.output(server)
    return code, "SIGQUIT: quit" in text, "[IO wait]" in text, "main.main()" in text


@scenario("vhost", "local")
def told_to_reload(side):
    """SIGHUP has it read its settings again, and what it serves goes on."""
    settings = write(side, "nats.conf", "debug: false\n")
    server, port = start_nats(side, "-c", settings)
    results = [side.python("client", "nats.py", side.address, port, 5, 5)]
    write(side, "nats.conf", "debug: true\n")
    server.send_signal(signal.SIGHUP)
    side.wait_for(server, "Reloaded server configuration")
    return results + [side.python("client", "nats.py", side.address, port, 5, 5)]


@scenario("vhost", "local", "veth")
def starts_itself(side):
    """`caddy start` starts `caddy run`, waits until that says by a connection that it serves, and ends."""
    port = free_port()
    write_caddyfile(side, port)
    starter = side.start("server", needs("caddy"), "start", "--adapter", "caddyfile", "--config", side.path("Caddyfile"), **home(side))
    code = side.end(starter)
    side.wait_port(port)
    return code, "Successfully started" in side.output(starter), side.run("client", "curl", "-sS", f"http://{side.address}:{port}/page")


@case
def switched_off():
    """BYPASS_RAW_CALLS=off: nats-server runs on the kernel's sockets, and `bypass why` says so."""
    with vhost("vhost")() as side:
        port = free_port()
        server = side.start("server", needs("nats-server"), "-a", "127.0.0.1", "-p", port, until="Server is ready", BYPASS_RAW_CALLS="off")
        check("BYPASS_RAW_CALLS is off" in side.why(server), side.why(server))
        side.python("client", "nats.py", "127.0.0.1", port, 2, 2, LD_PRELOAD="")


run_named(SCENARIOS, "same on both sides")

"""The programs that people run. Each does its real work with both ends under libbypass, and is compared with the same run on
the kernel's sockets.   programs.py NAME...   (no name: lists them)"""
import json
import os
import re
import shutil
import socket

from harness import BUILD, LONG, check, free_port, make_file, run_named, sha256
from sides import leaves_nobody_to_ask, on

SCENARIOS = {}


def scenario(*wires):
    return on(SCENARIOS, *wires)


def redis_server(side):
    port = free_port()
    server = side.start("server", "redis-server", "--bind", side.address, "--protected-mode", "no", "--port", port, "--save", "", "--appendonly", "no", "--dir",
                        side.dir, until="Ready to accept")
    return server, port


@scenario("vhost", "local", "rc", "shm", "veth", "verbs", "shared")
def redis(side):
    _, port = redis_server(side)
    cli = ["redis-cli", "-h", side.address, "-p", port]
    out = [side.run("client", *cli, "set", "greeting", "hello"), side.run("client", *cli, "get", "greeting")]
    script = "".join(f"rpush list {i}\n" for i in range(500)) + "lrange list 0 -1\nincrby n 41\nincr n\n"
    out.append(side.run("client", *cli, stdin=script.encode()))
    big = bytes(range(33, 123)) * 50000
    out.append(side.run("client", *cli, "-x", "set", "big", stdin=big))
    check(side.run("client", *cli, "get", "big").strip() == big, "4.5 MB came back changed")
    out.append(side.run("client", *cli, "nosuch"))
    return out


@scenario("vhost", "local", "rc", "shm", "verbs", "shared")
def redis_benchmark(side):
    _, port = redis_server(side)
    text = side.run("client", "redis-benchmark", "-h", side.address, "-p", port, "-n", 20000, "-c", 20, "-P", 4, "-t",
                    "ping,set,get,incr,lpush,lrange_100", "--csv", timeout=120).decode()
    rows = [line.split(",")[0] for line in text.strip().splitlines()]
    check(all(float(line.split(",")[1].strip('"')) > 0 for line in text.strip().splitlines()[1:]), "a row with no requests")
    return rows


@scenario("vhost", "local", "rc", "shm", "verbs")
@leaves_nobody_to_ask
def redis_from_the_kernel(side):
    """A wildcard listener also serves kernel peers: redis-cli from a plain shell reaches the same server."""
    port = free_port()
    side.start("server", "redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
               until="Ready to accept")
    wire = side.run("client", "redis-cli", "-h", side.address, "-p", port, "incr", "n")
    plain = side.run("server", "redis-cli", "-h", "127.0.0.1", "-p", port, "incr", "n", LD_PRELOAD="")
    again = side.run("client", "redis-cli", "-h", side.address, "-p", port, "incr", "n")
    return [wire, plain, again]


@scenario("vhost", "local", "rc", "shm", "veth", "shared")
def writers_whose_peer_has_ended(side):
    """Writers read all that their ended peer had sent, and then learn that it has gone."""
    ways = ("close", "shutdown", "exit")
    port, fifo = free_port(), side.path("ended")
    os.mkfifo(fifo)
    server = side.start_python("server", "ended_peer.py", "server", side.address, port, len(ways), fifo, until="ready")
    for way in ways:
        client = side.start_python("client", "ended_peer.py", "client", side.address, port, way)
        side.end(client)
        open(fifo, "w").close()
    side.wait_for(server, "all", 60)
    return side.output(server)


@scenario("vhost", "local", "rc", "shm", "veth")
def memcached(side):
    port = free_port()
    user = ["-u", "root"]
    side.start("server", "memcached", "-l", side.address, "-p", port, "-U", 0, "-t", 4, *user)
    side.wait_port(port)
    return side.python("client", "memcache_client.py", side.address, port, timeout=90)


def http_server(side, sizes):
    for name, size in sizes.items():
        make_file(side.path(name), size)
    port = free_port()
    side.start("server", "/usr/bin/python3", "-u", "-m", "http.server", port, "--bind", side.address, until="Serving HTTP")
    return port


@scenario("vhost", "local", "rc", "shm", "veth", "verbs", "shared")
def curl_and_wget(side):
    port = http_server(side, {"small": 100, "middle": 70000, "large": 20 << 20})
    out = []
    for name in ("small", "middle", "large"):
        url = f"http://{side.address}:{port}/{name}"
        out.append(side.run("client", "curl", "-sS", "-o", side.path("got"), "-w", "%{http_code} %{size_download}", url))
        check(sha256(side.path("got")) == sha256(side.path(name)), f"curl: {name} came changed")
        side.run("client", "wget", "-q", "-O", side.path("got"), url)
        check(sha256(side.path("got")) == sha256(side.path(name)), f"wget: {name} came changed")
    out.append(side.run("client", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://{side.address}:{port}/none"))
    side.run("client", "curl", "-sS", f"http://{side.address}:{free_port()}/", expect=7)  # refused
    return out


@scenario("vhost", "local", "rc", "shm", "veth")
@leaves_nobody_to_ask
def python_urllib_and_subprocess(side):
    """A few short connections. All of them may be over before there is a link."""
    port = http_server(side, {"a": 1, "b": 300000})
    return side.python("client", "http_client.py", f"http://{side.address}:{port}/a", f"http://{side.address}:{port}/b")


@scenario("vhost", "local", "rc", "shm", "veth")
def python_asyncio(side):
    port = free_port()
    side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready")
    return side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)


@scenario("vhost", "local", "rc", "shm", "veth", "verbs")
@leaves_nobody_to_ask
def threads_are_cancelled(side):
    """Each thread is cancelled inside a call or between two calls. Other threads do not notice."""
    port = free_port()
    side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready")
    return side.run("client", os.path.join(BUILD, "bin", "cancels"), side.address, port, 20000 if LONG else 400)


@scenario("local", "vhost")
@leaves_nobody_to_ask
def threads_are_cancelled_under_handlers(side):
    port = free_port()
    side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready")
    return side.run("client", os.path.join(BUILD, "bin", "cancels"), side.address, port, 40, 20000 if LONG else 2000)


@scenario("vhost", "local", "rc", "shm", "veth", "verbs")
@leaves_nobody_to_ask
def handlers_jump_out_of_calls(side):
    """Handlers leave calls by siglongjmp, as programs do for time-outs. Nothing of the call is left over."""
    port, program = free_port(), os.path.join(BUILD, "bin", "jumps")
    server = side.start("server", program, "server", side.address, port, until="ready")
    got = side.run("client", program, "client", side.address, port, 1000 if LONG else 40, timeout=200 if LONG else 60)
    return got, side.end(server)


def iperf3(side, *arguments):
    port = free_port()
    server = side.start("server", "iperf3", "-s", "-1", "-B", side.address, "-p", port, "--forceflush", until="Server listening")
    report = json.loads(side.run("client", "iperf3", "-c", side.address, "-p", port, "-J", *arguments))
    side.end(server)  # each server has one client; the wire's path is free again when the client has gone
    check("error" not in report, f"iperf3: {report.get('error')}")
    return report["end"]


@scenario("vhost", "local", "rc", "shm", "veth", "verbs", "shared")
@leaves_nobody_to_ask
def iperf3_tcp(side):
    amount = (10 << 30) if LONG else (160 << 20)  # four streams' buffers, at both ends, hold some 40 MB of it
    for extra in ([], ["-R"], ["-P", "4"]):
        end = iperf3(side, "-n", amount, *extra)
        received = end["sum_received"]["bytes"]  # iperf3 stops counting before the last of them have come
        check(received > amount // 2, f"{received} bytes of {amount}")
    return "both directions and four streams"


@scenario("vhost", "local", "veth", "verbs", "shared")
@leaves_nobody_to_ask
def iperf3_udp(side):
    # Datagrams are lost where the receiver gets no processor for a while, with the kernel's sockets, too.
    end = iperf3(side, "-t", "1", "-u", "-b", "20M", "-l", "1400")
    check(end["sum"]["packets"] > 1000 and end["sum"]["lost_percent"] < 95, f"lost {end['sum']['lost_percent']} %")
    return "20 Mbit/s of datagrams"


def sockperf(side, *arguments):
    port = free_port(socket.SOCK_DGRAM)
    side.start("server", "sockperf", "server", "-i", side.address, "-p", port, *arguments, until="to block on socket")
    # Without a rate it keeps room for 600,000 round trips a second, and ends with an error above that.
    rate = ["--mps", 100_000] if side.name == "local" else []
    text = side.run("client", "sockperf", "ping-pong", "-i", side.address, "-p", port, "-t", 2, *rate, *arguments).decode()
    counts = re.search(r"# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)", text)
    check(counts is not None, f"no totals in sockperf's report: {text[-500:]}")
    check("Summary: Latency is" in text, "no latency in sockperf's report")
    return counts.groups()


@scenario("vhost")
def sockperf_udp(side):
    return sockperf(side)


@scenario("vhost", "local")
@leaves_nobody_to_ask
def sockperf_tcp(side):
    return sockperf(side, "--tcp")


@scenario("vhost", "local", "rc", "shm", "veth")
def fork_and_exec(side):
    port = free_port()
    side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready")
    return side.python("client", "forking.py", side.address, port)


@scenario("vhost", "local", "rc", "shm", "veth")
def wrk(side):
    port = http_server(side, {"page": 2000})
    text = side.run("client", "wrk", "-t", 2, "-c", 8, "-d", "1s", f"http://{side.address}:{port}/page").decode()
    check("requests in" in text, text)
    check("Socket errors" not in text and "Non-2xx" not in text, text + side.why())
    return "no errors"


@scenario("vhost", "local", "rc", "shm", "veth")
@leaves_nobody_to_ask
def socat(side):
    port = free_port()
    make_file(side.path("in"), 3 << 20)
    server = side.start("server", "socat", "-u", f"TCP-LISTEN:{port},bind={side.address},reuseaddr", f"OPEN:{side.path('out')},creat")
    side.run("client", "socat", "-u", f"OPEN:{side.path('in')}", f"TCP:{side.address}:{port},retry=100,interval=0.05")
    check(side.end(server) == 0, "the listening socat failed")
    check(sha256(side.path("out")) == sha256(side.path("in")), "the file came changed")
    return "3 MiB"


RSYNC = """
use chroot = no
address = {address}
port = {port}
{user}
[tree]
path = {dir}/kept
read only = no
"""


def digests(folder):
    return {os.path.relpath(os.path.join(at, name), folder): sha256(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names}


@scenario("vhost", "local", "rc", "shm", "veth")
@leaves_nobody_to_ask
def rsync(side):
    """rsync copies a tree to the daemon and back, changes it, and copies the changes. Several processes run at each end."""
    port, url = free_port(), f"rsync://{side.address}"
    with open(side.path("rsync.conf"), "w") as file:
        file.write(RSYNC.format(address=side.address, port=port, dir=side.dir, user="uid = root\ngid = root" if os.geteuid() == 0 else ""))
    for i in range(1000 if LONG else 100):
        os.makedirs(side.path(f"tree/{i % 7}/{i % 3}"), exist_ok=True)
        make_file(side.path(f"tree/{i % 7}/{i % 3}/{i}"), 37 * i, i)
    make_file(side.path("tree/large"), 10 << 20)
    os.mkdir(side.path("kept"))
    side.start("server", "rsync", "--daemon", "--no-detach", "--config", side.path("rsync.conf"))
    side.wait_port(port)
    copy = ["rsync", "-ai", "--no-whole-file", "--delete", "--port", port]
    told = [side.run("client", *copy, "tree/", f"{url}/tree/")]
    check(digests(side.path("kept")) == digests(side.path("tree")), "what was sent came changed")
    told.append(side.run("client", *copy, "-z", f"{url}/tree/", "back/"))
    check(digests(side.path("back")) == digests(side.path("tree")), "what was fetched came changed")
    with open(side.path("back/large"), "r+b") as file:
        file.seek(5 << 20)
        file.write(b"changed" * 1000)
    os.utime(side.path("back/large"), (1_000_000_000, 1_000_000_000))  # rsync compares seconds, and both may be this one
    shutil.rmtree(side.path("back/1"))
    told.append(side.run("client", *copy, "back/", f"{url}/tree/"))
    check(digests(side.path("kept")) == digests(side.path("back")), "the changes came changed")
    return [sorted(line for line in text.splitlines() if not line.startswith(b".d")) for text in told]  # but for folders' times


@scenario("vhost", "local", "veth", "verbs", "shared")
@leaves_nobody_to_ask
def udp_echo(side):
    port = free_port(socket.SOCK_DGRAM)
    side.start_python("server", "udp_echo.py", "server", "0.0.0.0", port, until="ready")
    wire = side.python("client", "udp_echo.py", "client", side.address, port, 500)
    plain = side.python("server", "udp_echo.py", "client", "127.0.0.1", port, 500, LD_PRELOAD="")
    return [wire, plain]


def said(text):
    """The output of reports.py. The log may stand between its lines."""
    return [line for line in (text.decode() if isinstance(text, bytes) else text).splitlines() if line.startswith("= ")]


@scenario("vhost", "virtio", "local", "veth")
@leaves_nobody_to_ask
def reports(side):
    port = free_port()
    server = side.start_python("server", "reports.py", "server", side.address, port, until="ready")
    answers = said(side.python("client", "reports.py", "client", side.address, port))
    check(side.end(server) == 0, side.output(server))
    return answers, said(side.output(server))


run_named(SCENARIOS, "same on both sides")

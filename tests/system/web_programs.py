"""Web servers, proxies and languages. Each does its real work on every wire, and is compared with the same run on the
kernel's sockets.   web_programs.py NAME...   (no name: lists them)"""
import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile

import guardian
from harness import HERE, LONG, check, children_of, compare, free_port, make_file, run_named, sha256
from sides import served_by_another_user, leaves_nobody_to_ask, on
from veth_wire import Bridge

SCENARIOS = {}
ROOT = os.geteuid() == 0


def scenario(*wires):
    return on(SCENARIOS, *wires)


def write(side, name, text):
    with open(side.path(name), "w") as file:
        file.write(text)
    return side.path(name)


def certificate(side):
    """Makes a certificate for the server's address. Returns it and its key."""
    files = side.path("certificate"), side.path("key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=test",
                    "-addext", f"subjectAltName=IP:{side.address}", "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def peer(name):
    return os.path.join(HERE, "peers", name)


# --- Python --------------------------------------------------------------------------------------------------------

@scenario("vhost", "local", "rc", "veth")
def python_threading_server(side):
    port = free_port()
    side.start_python("server", "web.py", "server", side.address, port, until="ready")
    return side.python("client", "web.py", "client", side.address, port)


@scenario("vhost", "local", "rc", "veth")
@leaves_nobody_to_ask
def python_ssl(side):
    """With threads and with asyncio."""
    files, results = certificate(side), []
    for script in ("web.py", "asyncio_echo.py"):
        port = free_port()
        server = side.start_python("server", script, "server", side.address, port, *files, until="ready")
        results.append(side.python("client", script, "client", side.address, port, files[0]))
        side.kill(server)
    return results


# --- Node.js -------------------------------------------------------------------------------------------------------

@scenario("vhost", "local", "rc", "veth")
def node(side):
    ports = free_port(), free_port()
    side.start("server", "node", peer("web.js"), "server", side.address, *ports, until="ready")
    return sorted(side.run("client", "node", peer("web.js"), "client", side.address, *ports).splitlines())


# --- Java ----------------------------------------------------------------------------------------------------------

@functools.cache
def java_classes():
    folder = tempfile.mkdtemp(prefix="bypass-test-java.")
    guardian.entrust("folder", folder)
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["javac", "-J-XX:TieredStopAtLevel=1", "-d", folder, peer("Web.java")], check=True)
    return folder


@scenario("vhost", "local", "rc", "veth")
def java(side):
    command = "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", java_classes(), "Web"
    ports = free_port(), free_port()
    make_file(side.path("file"), 500_000)
    side.start("server", *command, "server", side.address, *ports, until="ready")
    return side.run("client", *command, "client", side.address, *ports, side.path("file"))


# --- servers of files ----------------------------------------------------------------------------------------------

SIZES = {"empty": 0, "small": 100, "middle": 70_000, "large": 8 << 20}


def files(side):
    os.chmod(side.dir, 0o755)  # for servers that give up being root
    os.mkdir(side.path("www"))
    return {name: make_file(side.path(f"www/{name}"), size, size) for name, size in SIZES.items()}


def fetch(side, base, sums, *options):
    """Fetches each file by itself, a part of one, and all of them many times at once. Returns what curl prints."""
    told = "%{http_version} %{http_code} %{size_download}\n"
    results = []
    for name, digest in sums.items():
        results.append(side.run("client", "curl", "-sS", *options, "-o", "got", "-w", told, f"{base}/{name}"))
        check(sha256(side.path("got")) == digest, f"{name} came changed")
    results.append(side.run("client", "curl", "-sS", *options, "-r", "1000-60999", "-o", "got", "-w", told, f"{base}/middle"))
    with open(side.path("got"), "rb") as got, open(side.path("www/middle"), "rb") as whole:
        check(got.read() == whole.read()[1000:61000], "the part came changed")
    results.append(side.run("client", "curl", "-sS", *options, "-I", "-o", "got", "-w", told, f"{base}/large"))
    results.append(side.run("client", "curl", "-sS", *options, "-o", "got", "-w", told, f"{base}/none"))
    count = 100 if LONG else 10
    lines = side.run("client", "curl", "-sS", *options, "-Z", "--parallel-max", "20", "--no-progress-meter", "-o", "got_#1_#2", "-w", told,
                     f"{base}/{{small,middle,large}}?[1-{count}]", timeout=120)
    for name in ("small", "middle", "large"):
        for i in range(1, count + 1):
            check(sha256(side.path(f"got_{name}_{i}")) == sums[name], f"{name} came changed among others")
            os.unlink(side.path(f"got_{name}_{i}"))
    return results, sorted(lines.splitlines())


LIGHTTPD = """
server.document-root = "{dir}/www"
server.bind = "{address}"
server.port = {port}
server.max-keep-alive-requests = 1000
mimetype.assign = ("" => "application/octet-stream")
"""


@scenario("vhost", "local", "rc", "veth")
def lighttpd(side):
    sums, port = files(side), free_port()
    config = write(side, "lighttpd.conf", LIGHTTPD.format(dir=side.dir, address=side.address, port=port))
    side.start("server", "lighttpd", "-D", "-f", config)
    side.wait_port(port)
    return fetch(side, f"http://{side.address}:{port}", sums)


APACHE = """
ServerRoot {dir}
ServerName test
PidFile {dir}/apache.pid
ErrorLog {dir}/error.log
Listen {address}:{port}
{modules}
{user}
Mutex file:{dir}
DocumentRoot {dir}/www
EnableSendfile On
MaxKeepAliveRequests 0
StartServers {servers}
MaxRequestWorkers 50
{settings}
"""


def apache(side, model, servers, settings=""):
    """A parent and its children. If the test runs as root, the children run as another user. All children are replaced in
    between."""
    sums, port = files(side), free_port()
    modules = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in (f"mpm_{model}", "authz_core"))
    config = write(side, "apache.conf", APACHE.format(dir=side.dir, address=side.address, port=port, modules=modules, servers=servers, settings=settings,
                                                      user="User www-data\nGroup www-data" if ROOT else ""))
    parent = side.start("server", "apache2", "-f", config, "-D", "FOREGROUND")
    side.wait_port(port)
    base = f"http://{side.address}:{port}"
    results, before = [fetch(side, base, sums)], children_of(parent.pid)
    os.kill(parent.pid, signal.SIGUSR1)
    side.until(lambda: children_of(parent.pid) and not set(before) & set(children_of(parent.pid)), "new children, no old one")
    return results + [fetch(side, base, sums)]


@scenario("vhost", "local", "rc", "veth")
@served_by_another_user
def apache_event(side):
    return apache(side, "event", 2, "ThreadsPerChild 25")


@scenario("vhost", "local", "rc", "veth")
@served_by_another_user
def apache_prefork(side):
    return apache(side, "prefork", 20)  # as many as there are clients at once


NGINX = """
{user}
worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log info;
events {{}}
http {{
  access_log off;
  client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp; fastcgi_temp_path {dir}/tmp;
  uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
  server {{
    listen {address}:{port} ssl http2;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    root {dir}/www;
  }}
}}
"""


@scenario("vhost", "local", "rc", "veth")
def curl_http2_tls(side):
    sums, port = files(side), free_port()
    certificate_file, key = certificate(side)
    config = write(side, "nginx.conf", NGINX.format(dir=side.dir, address=side.address, port=port, certificate=certificate_file, key=key,
                                                    user="user root;" if ROOT else ""))
    side.start("server", "/usr/sbin/nginx", "-e", side.path("error.log"), "-c", config)
    side.wait_port(port)
    base, trust = f"https://{side.address}:{port}", ["--cacert", certificate_file]
    return [fetch(side, base, sums, *trust, version) for version in ("--http2", "--http1.1")]


CADDY = """
{{
  admin off
  auto_https off
  storage file_system {dir}/caddy
}}
http://{address}:{port} {{
  root * {dir}/www
  file_server
}}
https://{address}:{tls} {{
  tls {certificate} {key}
  root * {dir}/www
  file_server
}}
"""


@scenario("vhost", "virtio", "local", "rc", "veth")
def caddy(side):
    """It is one of Go's: its system calls are its own. Its files go by sendfile(), or through TLS."""
    sums, ports = files(side), (free_port(), free_port())
    certificate_file, key = certificate(side)
    config = write(side, "Caddyfile", CADDY.format(dir=side.dir, address=side.address, port=ports[0], tls=ports[1], certificate=certificate_file, key=key))
    side.start("server", "caddy", "run", "--adapter", "caddyfile", "--config", config, HOME=side.dir, XDG_DATA_HOME=side.dir, XDG_CONFIG_HOME=side.dir)
    side.wait_port(ports[1])
    base, trust = f"https://{side.address}:{ports[1]}", ["--cacert", certificate_file]
    return [fetch(side, f"http://{side.address}:{ports[0]}", sums)] + [fetch(side, base, sums, *trust, version) for version in ("--http2", "--http1.1")]


# --- haproxy -------------------------------------------------------------------------------------------------------

HAPROXY = """
global
  nbthread 2
  maxconn 500
defaults
  mode http
  timeout connect 2s
  timeout client 20s
  timeout server 20s
  retries 3
  option redispatch
frontend web
  bind {front}
  default_backend servers
backend servers
  balance roundrobin
  server one {one} check inter 100 fall 10
  server two {two} check inter 100 fall 10
listen stream
  mode tcp
  option splice-auto
  bind {stream}
  server one {one}
"""


class Haproxy:
    """haproxy in front of two web servers, each an address and a port."""

    def __init__(self, side, role, address, one, two, *options):
        self.side, self.address, self.port, self.stream = side, address, free_port(), free_port()
        config = write(side, "haproxy.cfg", HAPROXY.format(front=f"{address}:{self.port}", stream=f"{address}:{self.stream}", one=one, two=two))
        side.start(role, "haproxy", *options, "-db", "-f", config)

    def answers(self, role, **extra):
        """The status of ten requests, and how many servers answered them."""
        told = self.side.run(role, "curl", "-sS", "-o", "got", "-w", "%{http_code} %header{x-port}\n", f"http://{self.address}:{self.port}/1000?[1-10]",
                             **extra)
        lines = [line.split() for line in told.decode().splitlines()]
        return [code for code, *_ in lines], len({port for _, *port in lines for port in port})

    def use(self, role, **extra):
        """Sends requests through the proxy, then through its plain forwarding."""
        side = self.side
        side.run(role, "curl", "-sS", "--retry", 20, "--retry-all-errors", "--retry-delay", 1, "-o", "got", f"http://{self.address}:{self.port}/0", **extra)
        side.until(lambda: self.answers(role, **extra)[1] == 2, "both servers pass haproxy's checks")  # a wire opens later than haproxy checks
        return [self.answers(role, **extra)] + [side.python(role, "web.py", "client", self.address, port, **extra) for port in (self.port, self.stream)]


@scenario("vhost", "local", "rc", "veth")
def haproxy_accepts(side):
    """haproxy's clients come over the wire. Its servers use the kernel. It runs as a master, which forks and executes
    itself, and a worker."""
    ports = free_port(), free_port()
    for port in ports:
        side.start_python("server", "web.py", "server", "127.0.0.1", port, until="ready", LD_PRELOAD="")
    return Haproxy(side, "server", side.address, *(f"127.0.0.1:{port}" for port in ports), "-W").use("client")


@scenario("vhost", "local", "rc", "veth")
def haproxy_connects(side):
    """haproxy's servers are at the other end of the wire. Its clients use the kernel."""
    ports = free_port(), free_port()
    side.start_python("server", "web.py", "server", side.address, ",".join(map(str, ports)), until="ready")
    return Haproxy(side, "client", "127.0.0.1", *(f"{side.address}:{port}" for port in ports)).use("client", LD_PRELOAD="")


# --- systemd -------------------------------------------------------------------------------------------------------

@scenario("vhost", "rc", "shm", "veth")
def systemd_socket_proxyd(side):
    """It moves bytes only by splice(), in both directions, and knows no other way. Its clients use the kernel."""
    port, front = free_port(), free_port()
    side.start_python("server", "web.py", "server", side.address, port, until="ready")
    side.start_python("client", "activate.py", front, "/lib/systemd/systemd-socket-proxyd", f"{side.address}:{port}", until="ready")
    side.run("client", "curl", "-sS", "--retry", 20, "--retry-all-errors", "--retry-delay", 1, "-o", "got", f"http://127.0.0.1:{front}/0", LD_PRELOAD="")
    return side.python("client", "web.py", "client", "127.0.0.1", front, LD_PRELOAD="")


# --- several on one bridge -----------------------------------------------------------------------------------------

def on_bridge(*roles, kernel):
    """The case of a scenario whose roles meet on a bridge. All but `kernel` run under the library."""
    def register(function):
        everybody = [*roles, kernel]
        SCENARIOS[f"{function.__name__}_bridge"] = lambda: compare(function, lambda: Bridge(everybody, ours=roles), kernel=lambda: Bridge(everybody, ours=()))
        return function
    return register


@on_bridge("proxy", "one", "two", "client", kernel="plain")
def haproxy(side):
    """Every end but one client runs under the library. Then one of the servers ends."""
    servers, behind = {}, []
    for role in ("one", "two"):
        port = free_port()
        behind.append(f"{side.addresses[role]}:{port}")
        servers[role] = side.start_python(role, "web.py", "server", side.addresses[role], port, until="ready")
    proxy = Haproxy(side, "proxy", side.addresses["proxy"], *behind)
    results = [proxy.use(role) for role in ("client", "plain")]
    side.kill(servers["two"])
    return results + [proxy.answers("plain")]


@on_bridge("one", "two", "three", kernel="plain")
def everybody_with_everybody(side):
    """Each role is a server and a client of each other role."""
    port = free_port()
    addresses = side.addresses.items()
    children = [side.start_python(role, "mesh.py", port, own, *(other for _, other in addresses if other != own)) for role, own in addresses]
    check([side.end(child, 60) for child in children] == [0] * len(children), "one of them failed")
    return [side.output(child) for child in children]


run_named(SCENARIOS, "same on every side")

"""Programs that fork and share sockets between their processes: what their workers' deaths, reloads and takeovers of
the wire cost, compared with the same run on the kernel's sockets.   families.py NAME...   (no name: lists them)"""
import json
import os
import random
import signal
import time

from harness import LONG, check, compare, free_port, kill_one, make_file, run_named, sha256

SCENARIOS = {}


def scenario(*kinds):
    """Registered once for each kind of port that the server has."""
    def register(function):
        for kind in kinds:
            SCENARIOS[f"{function.__name__}_{kind}"] = lambda kind=kind: compare(function, server_port=kind)
        return function
    return register


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split() if alive(child)]


# --- nginx ---------------------------------------------------------------------------------------------------------

NGINX = """
{user}
worker_processes 2;
pid {dir}/nginx.pid;
error_log {dir}/error.log info;
events {{ worker_connections 768; }}
http {{
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  access_log off;
  client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp; fastcgi_temp_path {dir}/tmp;
  uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
  server {{
    listen {address}:{port};
    root {dir}/www;
    add_header X-Worker $pid;
  }}
}}
"""


class Nginx:
    """A daemon: master and two workers, which are another user's when we are root."""

    def __init__(self, side):
        self.side, self.port = side, free_port()
        os.chmod(side.dir, 0o755)
        os.mkdir(side.path("www"))
        self.sums = {name: make_file(side.path(f"www/{name}"), size, size) for name, size in (("small", 3000), ("big", 3 << 20), ("page", 200_000))}
        with open(side.path("nginx.conf"), "w") as file:
            file.write(NGINX.format(dir=side.dir, address=side.address, port=self.port, user="user www-data;" if os.getuid() == 0 else ""))
        self.command()
        side.until(lambda: os.path.exists(side.path("nginx.pid")) and open(side.path("nginx.pid")).read().strip(), "nginx writes its pid file")
        self.master = int(open(side.path("nginx.pid")).read())
        side.until(lambda: len(self.workers()) == 2, "nginx has two workers")

    def command(self, *arguments):
        self.side.run("server", "/usr/sbin/nginx", "-e", self.side.path("error.log"), "-c", self.side.path("nginx.conf"), *arguments)

    def workers(self):
        return children_of(self.master)

    def curl(self, name):
        self.side.run("client", "curl", "-sS", "-o", self.side.path("out"), f"http://{self.side.address}:{self.port}/{name}")
        check(sha256(self.side.path("out")) == self.sums[name], f"{name} came changed")

    def log(self):
        return open(self.side.path("error.log"), errors="replace").read()

    def quit(self):
        """All processes end, and leave nothing of the wire behind."""
        self.command("-s", "quit")
        self.side.until(lambda: not alive(self.master), "nginx ends")
        self.side.until(lambda: not self.side.inhabitants(), "all processes have ended")
        wires = [name for name in os.listdir(self.side.dir) if name.startswith("wire")]
        check(wires == [], f"left behind: {wires}")
        problems = [line for line in self.log().splitlines() if "[alert]" in line or "[emerg]" in line or "[crit]" in line]
        return [line.split("] ", 1)[1].split(": ", 1)[1] if "]" in line else line for line in problems if "exited on signal 9" not in line]


class Load:
    """http_load.py in the background."""

    def __init__(self, nginx, connections=16, workers=2):
        side = self.side = nginx.side
        self.stop_file = side.path(f"stop{side.serial}")
        self.client = side.start_python("client", "http_load.py", side.address, nginx.port, "/page", side.path("www/page"), connections, workers,
                                        self.stop_file, until="running", timeout=60)

    def stop(self):
        open(self.stop_file, "w").close()
        check(self.side.end(self.client, 60) == 0, self.side.output(self.client))
        result = json.loads(self.side.output(self.client).splitlines()[-1])
        check(result["failed"] == [], result)
        return result


@scenario("vhost")
def nginx_serves(side):
    nginx = Nginx(side)
    for name in list(nginx.sums) * 2:
        nginx.curl(name)
    text = side.run("client", "wrk", "-t", 2, "-c", 16, "-d", "1s", f"http://{side.address}:{nginx.port}/small").decode()
    check("requests in" in text and "Socket errors" not in text and "Non-2xx" not in text, text)
    load = Load(nginx)
    check(load.stop()["lost"] == {}, "connections ended early")
    return nginx.quit()


@scenario("vhost")
def nginx_worker_killed(side):
    """Only the connections of the killed worker end."""
    nginx = Nginx(side)
    for seed in range(20 if LONG else 3):
        load = Load(nginx)
        victim = random.Random(seed).choice(nginx.workers())
        time.sleep(random.Random(seed).uniform(0, 0.3))  # the moment of death is any
        os.kill(victim, signal.SIGKILL)
        side.until(lambda: victim not in nginx.workers() and len(nginx.workers()) == 2, "the master starts another worker")
        side.until(lambda: f"lost {victim}" in side.output(load.client), "the dead worker's connections end")
        lost = load.stop()["lost"]
        check(all(int(key.split()[0]) == victim for key in lost), f"{victim} was killed, and these were lost: {lost}")
        nginx.curl("big")
    return nginx.quit()


@scenario("vhost")
def nginx_reload(side):
    """No request fails; a connection that stays idle ends."""
    nginx = Nginx(side)
    load = Load(nginx)
    for _ in range(10 if LONG else 3):
        before = nginx.workers()
        nginx.command("-s", "reload")
        side.until(lambda: len(nginx.workers()) == 2 and not set(before) & set(nginx.workers()), "two new workers, no old one")
    lost = load.stop()["lost"]
    nginx.curl("big")
    check(all(key.endswith("between answers") for key in lost), f"cut in the middle of an answer: {lost}")
    return nginx.quit()


run_named(SCENARIOS, "same on both sides")

"""Programs that fork and share sockets between their processes. Each case compares what a worker's death, a reload or a
takeover of the wire costs with the same run on the kernel's sockets.   families.py NAME...   (no name: lists them)"""
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

from harness import BUILD, LONG, alive, check, children_of, cpu_use, free_port, make_file, run_named, sha256
from sides import leaves_nobody_to_ask, on, served_by_another_user

SCENARIOS = {}


def scenario(*wires):
    return on(SCENARIOS, *wires)


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
    listen {address}:{port}{options};
    root {dir}/www;
    add_header X-Worker $pid;
  }}
}}
"""


class Nginx:
    """nginx as a daemon: a master and two workers. If the test runs as root, the workers run as another user."""

    def __init__(self, side, options="", environment=None):
        self.side, self.port, self.environment = side, free_port(), environment or {}
        os.chmod(side.dir, 0o755)
        os.mkdir(side.path("www"))
        self.sums = {name: make_file(side.path(f"www/{name}"), size, size) for name, size in (("small", 3000), ("big", 3 << 20), ("page", 200_000))}
        with open(side.path("nginx.conf"), "w") as file:
            file.write(NGINX.format(dir=side.dir, address=side.address, port=self.port, options=options, user="user www-data;" if os.getuid() == 0 else ""))
        self.command()
        side.until(lambda: os.path.exists(side.path("nginx.pid")) and open(side.path("nginx.pid")).read().strip(), "nginx writes its pid file")
        self.master = int(open(side.path("nginx.pid")).read())
        side.until(lambda: len(self.workers()) == 2, "nginx has two workers")

    def command(self, *arguments):
        self.side.run("server", "/usr/sbin/nginx", "-e", self.side.path("error.log"), "-c", self.side.path("nginx.conf"), *arguments, **self.environment)

    def workers(self):
        return children_of(self.master)

    def wait_for_new_workers(self, before):
        """Waits for two workers that are not in `before`."""
        self.side.until(lambda: len(self.workers()) == 2 and not set(before) & set(self.workers()), "two new workers, no old one")

    def curl(self, name):
        self.side.run("client", "curl", "-sS", "-o", self.side.path("out"), f"http://{self.side.address}:{self.port}/{name}")
        check(sha256(self.side.path("out")) == self.sums[name], f"{name} came changed")

    def log(self):
        return open(self.side.path("error.log"), errors="replace").read()

    def quit(self):
        """Ends all processes, and checks that they leave no file of the wire behind."""
        self.command("-s", "quit")
        self.side.until(lambda: not alive(self.master), "nginx ends")
        self.side.until(lambda: not self.side.inhabitants(), "all processes have ended")
        wires = [name for name in os.listdir(self.side.dir) if name.startswith("wire")]
        check(wires == [], f"left behind: {wires}")
        problems = [line for line in self.log().splitlines() if "[alert]" in line or "[emerg]" in line or "[crit]" in line]
        return [line.split("] ", 1)[1].split(": ", 1)[1] if "]" in line else line for line in problems if "exited on signal 9" not in line]


class Load:
    """Runs peers/http_load.py in the background."""

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


@scenario("vhost", "virtio", "veth", "verbs", "rc", "shm", "shared")
@served_by_another_user
def nginx_serves(side):
    nginx = Nginx(side)
    for name in list(nginx.sums) * 2:
        nginx.curl(name)
    text = side.run("client", "wrk", "-t", 2, "-c", 16, "-d", "1s", f"http://{side.address}:{nginx.port}/small").decode()
    check("requests in" in text and "Socket errors" not in text and "Non-2xx" not in text, text)
    load = Load(nginx)
    check(load.stop()["lost"] == {}, "connections ended early")
    return nginx.quit()


@scenario("vhost", "virtio", "verbs")
def nginx_worker_killed(side):
    """Only the connections of the killed worker end."""
    nginx = Nginx(side)
    for seed in range(20 if LONG else 3):
        load = Load(nginx)
        victim = random.Random(seed).choice(nginx.workers())
        time.sleep(random.Random(seed).uniform(0, 0.3))  # it dies at any moment
        os.kill(victim, signal.SIGKILL)
        side.until(lambda: victim not in nginx.workers() and len(nginx.workers()) == 2, "the master starts another worker")
        side.until(lambda: f"lost {victim}" in side.output(load.client), "the dead worker's connections end")
        lost = load.stop()["lost"]
        check(all(int(key.split()[0]) == victim for key in lost), f"{victim} was killed, and these were lost: {lost}")
        nginx.curl("big")
    return nginx.quit()


@scenario("vhost", "virtio", "verbs")
def nginx_listener_for_each_worker(side):
    """SO_REUSEPORT: new connections are spread over both processes. This also holds after one has ended and come back."""
    nginx = Nginx(side, options=" reuseport")
    for seed in range(10 if LONG else 2):
        load = Load(nginx)
        victim = random.Random(seed).choice(nginx.workers())
        os.kill(victim, signal.SIGKILL)
        side.until(lambda: victim not in nginx.workers() and len(nginx.workers()) == 2, "the master starts another worker")
        lost = load.stop()["lost"]
        check(all(int(key.split()[0]) == victim for key in lost), f"{victim} was killed, and these were lost: {lost}")
    check("second listener" not in side.why(), side.why())
    Load(nginx).stop()  # both serve
    return nginx.quit()


@scenario("vhost", "virtio", "veth", "verbs")
def nginx_reload(side):
    """No request fails. A connection that stays idle ends."""
    nginx = Nginx(side)
    load = Load(nginx)
    for _ in range(10 if LONG else 3):
        before = nginx.workers()
        nginx.command("-s", "reload")
        nginx.wait_for_new_workers(before)
    lost = load.stop()["lost"]
    nginx.curl("big")
    check(all(key.endswith("between answers") for key in lost), f"cut in the middle of an answer: {lost}")
    return nginx.quit()


# --- Python --------------------------------------------------------------------------------------------------------

def forked_echo(side, mode, word="ready"):
    port = free_port()
    return side.start_python("server", "forked_echo.py", mode, side.address, port, until=word), port


def echoed(side, port):
    return side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)


@scenario("vhost", "virtio", "veth")
def python_prefork(side):
    server, port = forked_echo(side, "prefork")
    total = [echoed(side, port) for _ in range(2)]
    os.kill(server.pid, signal.SIGTERM)
    check(side.end(server) == 0, side.output(server))
    return total, side.output(server).splitlines()[-1]


@scenario("vhost", "virtio", "veth")
def python_process_pool(side):
    _, port = forked_echo(side, "pool")
    return echoed(side, port), echoed(side, port)


@scenario("vhost", "virtio")
def python_forking_server(side):
    """The server forks a child for each of 200 connections. No descriptor and no socket is left over."""
    server, port = forked_echo(side, "forking")
    ours = lambda: sorted(fd for fd in map(int, os.listdir(f"/proc/{server.pid}/fd")) if fd < 1000)  # libbypass's own lie above
    before, total = ours(), [echoed(side, port) for _ in range(4)]
    side.until(lambda: children_of(server.pid) == [], "the children have ended")
    if side.name == "bypass":
        side.until(lambda: [s["state"] for s in side.stat(server)["sockets"]] == ["LISTEN"], "the listener alone is left")
    check(ours() == before, f"descriptors: {before}, then {ours()}")
    return before, total


@scenario("vhost", "veth", "rc")
@leaves_nobody_to_ask
def accepting_process_leaves_a_closed_connection(side):
    """The process that accepted a connection ends. A peer that has not ended its own side notices nothing: the rest of the
    family has the stack."""
    port, go, left = free_port(), side.path("go"), side.path("left")
    for fifo in (go, left):
        os.mkfifo(fifo)
    server = side.start_python("server", "half_closed.py", "server", side.address, port, go, until="ready")
    client = side.start_python("client", "half_closed.py", "client", side.address, port, left, until="connected")
    side.wait_for(server, "worker")
    open(go, "w").close()
    check(side.end(server) == 0, side.output(server))
    side.wait_for(client, "ended")
    open(left, "w").close()
    check(side.end(client) == 0, side.output(client))
    return side.output(client)


@scenario("vhost", "virtio")
def python_daemon(side):
    """Connections outlive the process that accepted them."""
    fifo = side.path("go")
    os.mkfifo(fifo)
    server, port = forked_echo(side, "daemon", "listens")
    client = side.start_python("client", "kept_connections.py", side.address, port, fifo, until="kept")
    check(side.end(server) == 0, "the parent failed")
    side.until(lambda: "alone" in side.output(server), "the child is alone")
    open(fifo, "w").close()
    check(side.end(client) == 0, side.output(client))
    return side.output(client).splitlines()[-1]


# --- redis ---------------------------------------------------------------------------------------------------------

class Redis:
    """A redis-server that also takes commands from a kernel socket, sent by a program without libbypass."""

    def __init__(self, side, role, *options, dump=None, **environment):
        self.side, self.port, name = side, free_port(), f"redis-{role}-{side.serial}"
        self.socket, self.dir = side.path(f"{name}.sock"), side.path(name)
        os.mkdir(self.dir)
        if dump:
            shutil.copy(os.path.join(dump.dir, "dump.rdb"), self.dir)
        self.child = side.start(role, "redis-server", "--protected-mode", "no", "--port", self.port, "--dir", self.dir, "--save", "", "--unixsocket",
                                self.socket, "--enable-debug-command", "yes", "--repl-diskless-sync-delay", 0, *options,
                                until="Ready to accept", **environment)

    def ask(self, *command):
        out = self.side.run("server", "redis-cli", "-s", self.socket, *command, LD_PRELOAD="").decode().strip()
        check(not out.startswith("ERR"), f"{command}: {out}")
        return out

    def info(self, field):
        return dict(line.split(":", 1) for line in self.ask("info").splitlines() if ":" in line)[field].strip()

    def saved(self):
        self.side.until(lambda: self.info("rdb_bgsave_in_progress") == "0", "BGSAVE has ended", 60)
        return self.info("rdb_last_bgsave_status")

    def saver(self):
        """The child that saves the data, slow enough that the test can find it."""
        self.ask("config", "set", "rdb-key-save-delay", 20000)
        self.ask("bgsave")
        self.side.until(lambda: len(children_of(self.child.pid)) == 1, "BGSAVE forks")
        return children_of(self.child.pid)[0]


@scenario("vhost", "virtio")
def redis_saves_under_load(side):
    """A forked child saves all data. Its death holds the server up only for a moment. The clients notice neither."""
    redis = Redis(side, "server", "--bind", side.address)
    load = side.start("client", "redis-benchmark", "-h", side.address, "-p", redis.port, "-r", 5000, "-c", 20, "-P", 4, "-t", "set,incr,sadd,hset", "-q", "-l")
    results = []
    side.until(lambda: int(redis.info("total_commands_processed")) > 1000, "the load runs")
    for _ in range(3):
        os.kill(redis.saver(), signal.SIGKILL)
        results.append(redis.saved())
        redis.ask("config", "set", "rdb-key-save-delay", 0)
        redis.ask("bgsave")
        results.append(redis.saved())
    commands = int(redis.info("total_commands_processed"))
    side.until(lambda: int(redis.info("total_commands_processed")) > commands + 10000, "the load goes on")

    def killed():  # between two of its tests the load has no connection
        redis.ask("client", "kill", "type", "normal")
        return load.poll() is not None
    side.until(killed, "the load ends")
    check(side.end(load) == 1, side.output(load))
    redis.ask("bgsave")
    results.append(redis.saved())
    again = Redis(side, "server", "--bind", "127.0.0.1", dump=redis, LD_PRELOAD="")
    check(again.ask("debug", "digest") == redis.ask("debug", "digest"), "the dump holds something else")
    out = side.run("client", "redis-benchmark", "-h", side.address, "-p", redis.port, "-n", 20000, "-c", 20, "-P", 4, "-t", "get", "-q")
    check(b"GET" in out, out)
    return results


@scenario("vhost", "virtio")
def redis_replica(side):
    """A replica gets all data over the wire, through a file and through a pipe from the saving child, also at the second
    try."""
    master, results = Redis(side, "server", "--bind", side.address), []
    replica = Redis(side, "client", "--bind", "127.0.0.1")
    master.ask("debug", "populate", 20000, "key", 100)
    load = side.start("server", "redis-benchmark", "-s", master.socket, "-r", 5000, "-c", 4, "-t", "set,sadd", "-q", "-l", LD_PRELOAD="")
    for turn, diskless in enumerate(("no", "yes"), 1):
        master.ask("config", "set", "repl-diskless-sync", diskless)
        master.ask("config", "set", "rdb-key-save-delay", 1000)
        replica.ask("replicaof", side.address, master.port)
        side.until(lambda: len(children_of(master.child.pid)) == 1, "the master forks")
        master.ask("config", "set", "rdb-key-save-delay", 0)
        os.kill(children_of(master.child.pid)[0], signal.SIGKILL)
        side.until(lambda: replica.info("master_link_status") == "up", "the replica is in step", 60)
        results.append(int(master.info("sync_full")) >= 2 * turn)
        master.ask("client", "pause", 20000, "write")
        side.until(lambda: replica.info("master_repl_offset") == master.info("master_repl_offset"), "the replica has all")
        check(replica.ask("debug", "digest") == master.ask("debug", "digest"), "the replica holds something else")
        results.append(int(replica.ask("dbsize")) >= 20000)
        master.ask("client", "unpause")
        replica.ask("replicaof", "no", "one")
        replica.ask("flushall")
    side.kill(load)
    return results


# --- PostgreSQL ----------------------------------------------------------------------------------------------------

class Postgres:
    """A PostgreSQL cluster of its own, run by an unprivileged user, with a process for each connection."""

    def __init__(self, side):
        self.side, self.port, self.data = side, free_port(), side.path("data")
        self.bin = max(glob.glob("/usr/lib/postgresql/*/bin"))
        self.user = []
        if os.getuid() == 0:  # with the settings that an interface needs
            self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw"]
        if self.user:
            shutil.chown(side.dir, "postgres", "postgres")
        self.run("server", "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", LD_PRELOAD="")
        with open(os.path.join(self.data, "pg_hba.conf"), "a") as file:
            file.write(f"host all all {side.client_address}/32 trust\n")
        self.server = side.start("server", *self.user, f"{self.bin}/postgres", "-D", self.data, "-h", side.address, "-p", self.port, "-c", "unix_socket_directories=",
                                 "-c", "fsync=off", "-c", "shared_buffers=16MB", until="ready to accept connections")

    def run(self, role, program, *arguments, **options):
        return self.side.run(role, *self.user, f"{self.bin}/{program}", *arguments, **options)

    def client(self, program):
        return [*self.user, f"{self.bin}/{program}", "-h", self.side.address, "-p", self.port, "-U", "postgres"]

    def ask(self, query, expect=0):
        return self.side.run("client", *self.client("psql"), "-XAtq", "-c", query, "postgres", expect=expect).decode().strip()

    def bench(self, *options, timeout=120):
        return self.side.run("client", *self.client("pgbench"), *options, "postgres", timeout=timeout).decode()

    def sums(self):
        """The sums of all accounts, tellers, branches and of the history, which must be equal."""
        tables = ("pgbench_accounts", "abalance"), ("pgbench_tellers", "tbalance"), ("pgbench_branches", "bbalance"), ("pgbench_history", "delta")
        return set(self.ask("; ".join(f"select coalesce(sum({column}), 0) from {table}" for table, column in tables)).split())

    def titles(self):
        """What each child of the server says of itself, by its pid."""
        def title(pid):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    return file.read()
            except OSError:
                return ""  # it has ended since it was listed
        return {pid: title(pid) for pid in children_of(self.server.pid)}

    def backends(self):
        return [pid for pid, title in self.titles().items() if "postgres postgres" in title]

    def runs_transactions(self):
        """pgbench begins when all its clients are connected."""
        return any(word in title for title in self.titles().values() for word in ("UPDATE", "INSERT", "SELECT", "COMMIT", "transaction"))


@scenario("vhost", "veth")
def postgresql(side):
    """Each connection has a process. When one is killed, PostgreSQL ends all of them and begins anew."""
    postgres = Postgres(side)
    postgres.bench("-i", "-q")
    results = re.findall(r"actually processed: (\S+)", postgres.bench("-n", "-c", 8, "-j", 2, "-t", 100))
    check(len(postgres.sums()) == 1, f"the sums differ: {postgres.sums()}")
    load = side.start("client", *postgres.client("pgbench"), "-n", "-c", 8, "-j", 2, "-T", 600, "postgres")
    side.until(lambda: postgres.runs_transactions() and len(postgres.backends()) == 8, "eight backends", 60)
    time.sleep(random.Random(3).uniform(0, 0.3))  # it dies at any moment
    os.kill(postgres.backends()[0], signal.SIGKILL)
    results.append(side.end(load))
    side.until(lambda: side.output(postgres.server).count("ready to accept connections") == 2, "PostgreSQL begins anew", 60)
    results += re.findall(r"actually processed: (\S+)", postgres.bench("-n", "-c", 8, "-j", 2, "-t", 100))
    check(len(postgres.sums()) == 1, f"the sums differ: {postgres.sums()}")
    os.kill(postgres.server.pid, signal.SIGINT)
    check(side.end(postgres.server) == 0, side.output(postgres.server))
    return results


# --- fork beside threads -------------------------------------------------------------------------------------------

@scenario("vhost", "virtio")
def forks_beside_busy_threads(side):
    """A program forks again and again while its threads use 64 connections. Its children have connections of their own."""
    port = free_port()
    side.start_python("client", "asyncio_echo.py", "server", side.client_address, port, until="ready")
    return side.run("server", os.path.join(BUILD, "bin", "forks"), side.client_address, port, 1000 if LONG else 100, timeout=600)


@scenario("vhost", "virtio", "rc")
@leaves_nobody_to_ask
def handlers_run_while_children_end(side):
    """A signal handler closes a socket in a process that is about to end, as apache's children do at a graceful restart. Other
    processes keep the socket."""
    port = free_port()
    server = side.start("server", os.path.join(BUILD, "bin", "last_handlers"), side.address, port, 1000 if LONG else 300, until="ready", timeout=200)
    got = side.run("client", "/usr/bin/python3", "-c", f"import socket; print(socket.create_connection(('{side.address}', {port})).recv(100))")
    return got, side.end(server)


# --- a shell's children --------------------------------------------------------------------------------------------

@scenario("vhost")
def shell_in_the_background(side):
    """A script starts children in the background and in pipes. Each is a process of its own and takes its turn on the wire."""
    port = free_port()
    make_file(side.path("page"), 200_000)
    side.start("server", "/usr/bin/python3", "-u", "-m", "http.server", port, "--bind", side.address, until="Serving HTTP")
    script = f"""
        url=http://{side.address}:{port}
        for i in 1 2 3; do curl -sS --retry 20 --retry-connrefused --retry-all-errors --retry-delay 1 $url/page -o curl$i & done
        wget -q --tries=20 --retry-connrefused -O - $url/page | sha256sum >wget &
        wait
        curl -sS --retry 20 --retry-all-errors $url/page | tee copy | wc -c
        sha256sum curl? copy | cut -c1-64; cut -c1-64 wget"""
    return side.run("client", "bash", "-c", script, timeout=120)


# --- the owner's death ---------------------------------------------------------------------------------------------

def holders(side):
    """The processes that have the server's end of the wire. There is one, except for an instant around a fork."""
    inside = side.inside("server") if hasattr(side, "inside") else []
    listed = subprocess.run([*inside, "ss", "-xanpH"], capture_output=True, text=True, check=True).stdout
    if inside:  # the listener's flow is steered to this process
        return {int(pid) for line in listed.splitlines() if "TCP port" in line for pid in re.findall(r"pid=(\d+)", line)}
    rows = [line.split() for line in listed.splitlines()]
    ours = [row for row in rows if row[4] == side.path("wire")]
    if side.kinds["server"] == "vhost":
        held = [row for row in ours if row[1] == "LISTEN"]
    else:
        peers = {row[5] for row in ours if row[1] == "ESTAB"}
        held = [row for row in rows if row[7] in peers and row not in ours]
    return {int(pid) for row in held for pid in re.findall(r"pid=(\d+)", row[-1])}


@scenario("vhost", "virtio", "verbs", "rc", "shm", "shared_server")
def owner_killed(side):
    """The process that has the wire is killed, again and again. Only its transfers end. If it died in the middle of a change of
    the stack, one more transfer may end."""
    port, stop, count = free_port(), side.path("stop"), 16
    server = side.start_python("server", "many_workers.py", side.address, port, 4)
    side.until(lambda: side.output(server).count("worker") == 4, "four workers")
    client = side.start_python("client", "checked_transfers.py", side.address, port, count, stop)
    killed, rng = [], random.Random(1)

    def served():
        """The living process that serves each connection."""
        now, others = {}, 0
        for word, index, worker in re.findall(r"^(serves|lost) (\d+) (.*)$", side.output(client), re.M):
            others += word == "lost" and not (worker.isdigit() and int(worker) in killed)
            now[index] = int(worker) if word == "serves" else None
        check(others <= side.output(server).count("has died inside the stack"), f"killed {killed}: {side.output(client)}")
        return {index: worker for index, worker in now.items() if worker not in [None, *killed]}

    def owner(living):
        """The living process that has the wire. None: no process has it yet, or the dead one still counts."""
        held = holders(side)
        return held.pop() if len(held) == 1 and held <= set(living) else None

    for turn in range(500 if LONG else 25):
        side.until(lambda: len(served()) == count, f"all connections transfer after {turn} deaths")
        living = [int(pid) for pid in re.findall(r"^worker (\d+)$", side.output(server), re.M) if int(pid) not in killed]
        victim = rng.choice(living)
        if side.name == "bypass":
            victim = side.soon(lambda: owner(living), 20)
            check(victim is not None, f"{holders(side)} hold the wire, of {living}")
        time.sleep(rng.uniform(0, 0.02))  # it dies at any moment
        killed.append(victim)
        os.kill(victim, signal.SIGKILL)
        os.kill(rng.choice([pid for pid in living if pid != victim]), signal.SIGUSR1)
        side.until(lambda: side.output(server).count("worker") == 5 + turn, "another worker")
    side.until(lambda: len(served()) == count, "all connections transfer at last")
    open(stop, "w").close()
    check(side.end(client) == 0, side.output(client))
    return [len(killed), *re.findall(r"^wrong .*", side.output(client), re.M)]


@scenario("vhost", "virtio", "rc")
@leaves_nobody_to_ask
def executes_itself_beside_children(side):
    """A process executes another program, which serves again. Children of the former program still live, with no socket
    open."""
    port, client = free_port(), ("import socket, sys\n"
                                 "connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n"
                                 "connection.sendall(b'bytes')\nprint(connection.makefile().read())")
    server = side.start_python("server", "executed_again.py", side.address, port, until="ready")
    answers = []
    for turn in range(3):
        answers.append(side.run("client", "/usr/bin/python3", "-c", client, side.address, port))
        os.kill(server.pid, signal.SIGHUP)
        side.until(lambda: side.output(server).count("ready") == turn + 2, "it listens again")
    return answers


def follows(pid, owner):
    """Whether a process watches for another one's end, as a follower does for the owner's."""
    watched = []
    for path in glob.glob(f"/proc/{pid}/fdinfo/*"):
        with contextlib.suppress(OSError):
            watched += re.findall(r"^Pid:\s+(\d+)$", open(path).read(), re.M)
    return str(owner) in watched


# What a child of the vanishing owner does when it is told to, while no process of its family has the wire.


def serves(side, child, port):
    os.kill(child, signal.SIGUSR1)
    client = "import socket, sys\nprint(socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).makefile().read())"
    side.until(lambda: f"listens {child}" in side.output(side.server), "it listens")
    check(side.run("client", "/usr/bin/python3", "-c", client, side.address, port) == b"served\n\n", "it does not serve")


def connects(side, child, port):
    listener = ("import socket, sys\nlistener = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
                "print('ready', flush=True)\nprint(listener.accept()[0].makefile().read(), flush=True)")
    client = side.start("client", "/usr/bin/python3", "-c", listener, side.client_address, port, until="ready")
    os.kill(child, signal.SIGUSR2)
    check(side.end(client, 30) == 0 and "connected" in side.output(client), "it does not connect")


def check_they_rest(children):
    before = {pid: cpu_use(pid) for pid in children}
    time.sleep(1)  # what is measured
    for pid, name in children.items():
        used, turns = (after - was for after, was in zip(cpu_use(pid), before[pid]))
        check(used <= 25 and turns <= 40, f"{name}: {used} ms in 1 s, in {turns} turns")


def idle_when_the_owner(side, vanishes, needs):
    """The owner of the wire vanishes, and no process has a socket there any more. The children that once had one do nothing.
    The first that needs the wire again opens it."""
    port, again = free_port(), free_port()
    side.server = server = side.start_python("server", "vanishing_owner.py", side.address, port, side.client_address, again,
                                             until="ready")
    client = ("import socket, sys\nconnection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n"
              "connection.sendall(b'bytes' * int(sys.argv[3]))\nprint(connection.makefile().read())")
    # A process that waits for bytes looks at the wire itself. A process that gets none never does.
    waits, passive = (side.run("client", "/usr/bin/python3", "-c", client, side.address, port, asked) for asked in (1, 0))
    waits, passive = int(waits), int(passive)
    ours = side.is_ours("server")
    if ours:
        side.until(lambda: follows(waits, server.pid) and follows(passive, server.pid), "the children follow the owner")
    os.kill(server.pid, signal.SIGUSR1)
    side.wait_for(server, "nothing open")
    if ours:
        open_sockets = lambda: [s for s in side.stat(server)["sockets"] if s["state"] != "TIME-WAIT"]
        side.until(lambda: open_sockets() == [], f"nothing is on the wire: {open_sockets()}")
    vanishes(server)
    if ours:
        side.until(lambda: not follows(waits, server.pid) and not follows(passive, server.pid), "they see that it is gone")
    check_they_rest({waits: "one that has waited", passive: "a passive one"})
    needs(side, passive if needs is serves else waits, again)
    return "served"


@scenario("vhost", "virtio")
def idle_when_the_owner_is_killed(side):
    def killed(owner):
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    return idle_when_the_owner(side, killed, serves)


@scenario("vhost", "virtio")
def idle_when_the_owner_ends(side):
    def ended(owner):
        os.kill(owner.pid, signal.SIGTERM)
        check(owner.wait(20) == 0, "its end is not the one it was asked for")
    return idle_when_the_owner(side, ended, connects)


@scenario("vhost", "virtio")
def idle_when_the_owner_executes_another(side):
    def executed(owner):
        os.kill(owner.pid, signal.SIGHUP)
        side.wait_for(owner, "executed")
    return idle_when_the_owner(side, executed, serves)


@scenario("vhost", "virtio", "rc", "shm")
def orphaned_writer(side):
    """A writer ends right after its fork, and its child ends when it has written the rest. No process has opened the wire yet
    that could deliver the bytes."""
    port, count = free_port(), 100 if LONG else 12
    server = side.start_python("server", "orphaned_writer.py", "server", side.address, port, until="ready")
    for number in range(count):
        side.python("client", "orphaned_writer.py", "client", side.address, port, number)
        side.until(lambda: side.output(server).count("stream") == number + 1, "the stream has ended", 30)
    # It is also logged if no process serves the wire for long.
    return sorted(line for line in side.output(server).splitlines() if line.startswith("stream"))


if __name__ == "__main__":
    run_named(SCENARIOS, "same on both sides")

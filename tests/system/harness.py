"""Runs programs on two sides, the kernel's loopback and libbypass over a vhost/virtio link, so that one
scenario's results can be compared. Each file that it makes lies in one temporary folder, which it removes at the end."""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import guardian

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BYPASS_BUILD", os.path.join(ROOT, "build"))
LIB = os.path.join(BUILD, "libbypass.so")
NETBENCH = os.path.join(BUILD, "bin", "netbench")
LONG = bool(os.environ.get("BYPASS_TEST_LONG"))
HERE = os.path.dirname(os.path.abspath(__file__))


def sanitizer_runtime():
    """The library that must be loaded before all others if the build uses AddressSanitizer. Otherwise empty."""
    cache = os.path.join(BUILD, "CMakeCache.txt")
    if not os.path.exists(cache) or "BYPASS_SANITIZE:STRING=address" not in open(cache).read():
        return ""
    return subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, check=True).stdout.decode().strip()


RUNTIME = sanitizer_runtime()


def preload(library):
    """The variables that load a library into any program. Leaks of the program itself are not reported."""
    if not RUNTIME:
        return {"LD_PRELOAD": library}
    return {"LD_PRELOAD": f"{RUNTIME}:{library}", "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}


class Failure(Exception):
    pass


class Skip(Exception):
    """The machine does not have what the case needs."""


def check(condition, text):
    if not condition:
        raise Failure(text)


class Side:
    """One way to connect a server and a client program: `kernel`, `local` (shared memory beneath the kernel's loopback,
    from the first call on) or `bypass`; `server_port` is the server's end of
    the wire, vhost or virtio; `soft`: that wire lies under a software RDMA device, whose raw-packet queue pair is the
    port; `rdma`, `shm`: its connections move to RC queue pairs, or to memory that both ends share. What a scenario asks of any side: start, run, python and so on by role, `address`, `client_address`, `is_ours`."""
    preloaded = LIB

    def __init__(self, name, profile="balanced", server_port="vhost", soft=False, rdma=False, shm=False):
        check(os.path.exists(self.preloaded), f"{self.preloaded} is not built")
        self.name = name
        self.title = f"{server_port} server" if name == "bypass" else name
        # Within the host the run directory is in memory, as a user's is. On a disk, making a socket takes long.
        self.dir = tempfile.mkdtemp(prefix=f"bypass-test-{name}.", dir="/dev/shm" if name == "local" else None)
        guardian.entrust("folder", self.dir)
        self.profile = profile
        self.soft, self.rdma, self.shm = soft, rdma, shm
        self.kinds = {"server": server_port, "client": {"vhost": "virtio", "virtio": "vhost"}[server_port]}
        self.children = []
        self.serial = 0
        open(self.path("empty.toml"), "w").close()
        if name == "bypass":
            self.address, self.client_address = "10.9.0.1", "10.9.0.2"
        else:
            self.address, self.client_address = "127.0.0.1", "127.0.0.1"

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            self.show_logs()
        for child in reversed(self.children):
            self.kill(child)
        for pid in self.inhabitants():
            kill_one(pid)
        shutil.rmtree(self.dir, ignore_errors=True)

    def inhabitants(self):
        return guardian.inhabitants(self.dir)

    def show_logs(self):
        for child in self.children:
            text = open(child.log, errors="replace").read()[-2000:]
            print(f"--- {self.title}: {' '.join(child.args)[:200]} (exit {child.poll()})\n{text}", file=sys.stderr)

    def show_hung(self, child):
        """Shows where each thread of a program that does not end is, and what the library knows of its sockets."""
        print(f"--- {self.title}: {child.args} does not end", file=sys.stderr)
        for thread in sorted(os.listdir(f"/proc/{child.pid}/task")):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                words = [open(f"/proc/{child.pid}/task/{thread}/{name}").read().strip() for name in ("comm", "wchan", "syscall")]
                print(thread, *words, file=sys.stderr)
        if self.name == "kernel":
            return
        for subcommand in ("stat", "ss", "why"):
            said = subprocess.run([os.path.join(BUILD, "bypass"), subcommand], env=self.environment("server", LD_PRELOAD=""),
                                  capture_output=True, timeout=30, text=True)
            print(f"bypass {subcommand}:\n{said.stdout}{said.stderr}", file=sys.stderr)

    def path(self, name):
        return os.path.join(self.dir, name)

    def is_ours(self, role):
        """Whether this role's programs run under libbypass."""
        return self.name != "kernel"

    def environment(self, role, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BYPASS_") and k != "LD_PRELOAD"}
        env["LC_ALL"] = "C"
        env["BYPASS_LOCAL"] = "off"  # a case that names a wire, or the kernel, gets it
        if self.name == "bypass":
            address = {"server": self.address, "client": self.client_address}[role]
            wire = f"{self.kinds[role]}:{self.path('wire')}"
            env.update({"BYPASS_SOFT": wire, "BYPASS_PORT": "verbs:soft0"} if self.soft else {"BYPASS_PORT": wire})
            env.update(BYPASS_RDMA="soft0" if self.rdma else "off", BYPASS_LOCAL="on" if self.shm else "off")
            env.update(BYPASS_ADDR=f"{address}/24", BYPASS_PROFILE=self.profile, BYPASS_RUN_DIR=self.path("run"),
                       BYPASS_CONFIG=self.path("empty.toml"), **preload(self.preloaded))
        if self.name == "local":
            env.update(BYPASS_LOCAL="on", BYPASS_LOCAL_AFTER="0", BYPASS_PROFILE=self.profile, BYPASS_RUN_DIR=self.path("run"),
                       BYPASS_CONFIG=self.path("empty.toml"), **preload(self.preloaded))
        env.update(extra)
        return env

    def start(self, role, *command, until=None, timeout=20, stdin=subprocess.DEVNULL, **extra):
        """Starts a program in the background. Its output must show the word `until` first. stdin=subprocess.PIPE: the
        program's input does not end while the test runs."""
        self.serial += 1
        log = self.path(f"log{self.serial}")
        with open(log, "wb") as out:
            child = subprocess.Popen([str(c) for c in command], env=self.environment(role, **extra), cwd=self.dir,
                                     stdin=stdin, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        child.log = log
        self.children.append(child)
        if until:
            self.wait_for(child, until, timeout)
        return child

    def output(self, child):
        return open(child.log, errors="replace").read()

    def wait_for(self, child, word, timeout=20):
        deadline = time.monotonic() + timeout
        while True:
            ended = child.poll()  # before its output is read: the word may be the last thing that it prints
            if word in self.output(child):
                return
            check(ended is None, f"{child.args[0]} ended with {ended} before it said '{word}'")
            check(time.monotonic() < deadline, f"{child.args[0]} did not say '{word}' within {timeout} s")
            time.sleep(0.01)

    def run(self, role, *command, timeout=60, stdin=None, expect=0, **extra):
        """Runs a program to its end, and returns its standard output."""
        child = subprocess.Popen([str(c) for c in command], env=self.environment(role, **extra), cwd=self.dir,
                                 stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        with child:
            try:
                out, errors = child.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                self.show_hung(child)
                child.kill()
                out, errors = child.communicate()
                raise Failure(f"{command[0]} did not end within {timeout} s: {out[-500:]} {errors[-500:]}")
            except BaseException:
                child.kill()
                raise
        done = subprocess.CompletedProcess(command, child.returncode, out, errors)
        check(expect is None or done.returncode == expect,
              f"{' '.join(str(c) for c in command)}: exit {done.returncode}: {done.stdout[-800:]!r} {done.stderr[-800:]!r}")
        return done.stdout

    def python(self, role, script, *arguments, **options):
        """Runs a script of this folder under /usr/bin/python3."""
        return self.run(role, "/usr/bin/python3", os.path.join(HERE, "peers", script), *arguments, **options)

    def start_python(self, role, script, *arguments, **options):
        return self.start(role, "/usr/bin/python3", "-u", os.path.join(HERE, "peers", script), *arguments, **options)

    def wait_port(self, port, timeout=20):
        """Waits until a process listens at the server's port, as the client sees it."""
        self.python("client", "wait_port.py", self.address, port, timeout, timeout=timeout + 10)

    def kill(self, child, how=signal.SIGTERM):
        if child.poll() is None:
            try:
                os.killpg(child.pid, signal.SIGCONT)
                os.killpg(child.pid, how)
                child.wait(15)  # what it has sent may have to be delivered first (BYPASS_EXIT_LINGER_MS)
            except ProcessLookupError:
                pass
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def end(self, child, timeout=20):
        """Waits until a background program ends by itself, and returns its exit code."""
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{child.args[0]} did not end within {timeout} s")

    def until(self, condition, what, timeout=20):
        """Asks until the answer is not false, and returns it."""
        answer = self.soon(condition, timeout)
        check(answer, f"not within {timeout} s: {what}")
        return answer

    def soon(self, condition, timeout):
        """Asks until the answer is not false or the time is over, and returns the last answer."""
        deadline = time.monotonic() + timeout
        while not (answer := condition()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return answer

    def bypass(self, subcommand, child, command=os.path.join(BUILD, "bypass")):
        """What `bypass SUBCOMMAND --json` says about one process."""
        out = self.run("server", command, subcommand, "--json", child.pid, LD_PRELOAD="")
        return json.loads(out)["processes"][0]

    def stat(self, child):
        return self.bypass("stat", child)

    def count(self, counter):
        """The sum of a counter over the programs that still run."""
        out = self.run("server", os.path.join(BUILD, "bypass"), "stat", "--json", LD_PRELOAD="", expect=None)
        return sum(p["counters"].get(counter, 0) for p in json.loads(out or "{}").get("processes", []))

    def why(self, child=None, **environment):
        """What `bypass why` says about one process, which must be there, or about all of this side."""
        which, expect = ([], None) if child is None else ([child.pid], 0)
        return self.run("server", os.path.join(BUILD, "bypass"), "why", *which, LD_PRELOAD="", expect=expect, **environment).decode()


# What each of perftest's programs is given. Its own patience with a peer ends after half a second without an answer (eight
# times 67 ms), and on a busy machine a program may be off the processor for longer; this is 8 s.
PERFTEST = ("-x", 1, "-F", "-u", 18)


def kill_one(pid, how=signal.SIGKILL):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def is_idle(child):
    """Whether a process uses less than 25 ms of CPU time in a second."""
    def used_ms():
        fields = open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")
    before = used_ms()
    time.sleep(1)
    return used_ms() - before < 25


def cpu_use(pid):
    """All threads of a process together, by the scheduler's own count: CPU time in milliseconds, and how often a thread was
    put on a CPU."""
    nanoseconds, turns = 0, 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            used, _, times = map(int, open(f"/proc/{pid}/task/{task}/schedstat").read().split())
            nanoseconds, turns = nanoseconds + used, turns + times
        except OSError:
            pass  # it has ended since it was listed
    return nanoseconds / 1e6, turns


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split() if alive(child)]


def compare(scenario, *sides, kernel=lambda: Side("kernel"), uses_fast_path=True):
    """Runs a scenario on the kernel's sockets and on each of `sides`, which are functions that make a side. The results
    must be the same. `uses_fast_path`: on a side with a fast path, some connection that still lives must use it. A
    connection moves there in the background. On a busy machine a short scenario may be over before that. Then it runs
    again, on a new side."""
    with kernel() as side:
        expected = scenario(side)
    for make in sides:
        for attempt in range(5):
            with make() as side:
                counters = {"local_shared": side.name == "local", "shm_lanes": side.shm, "rdma_lanes": side.rdma}
                wanted = [name for name, has in counters.items() if has and uses_fast_path]
                result = scenario(side)
                check("port_unavailable" not in side.why(), f"{side.title}: it ran on the kernel's sockets: {side.why()}")
                check(result == expected, f"the sides differ:\nkernel: {expected}\n{side.title}: {result}")
                if side.soon(lambda: all(side.count(name) for name in wanted), 1):
                    break
                check(attempt < 4, f"{side.title}: no connection has used the fast path ({', '.join(wanted)}): {side.why()}")


def run_named(cases, verdict):
    """The main program of a file of cases. It runs the cases that its arguments name. Without arguments it lists all of
    them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything that a case has made is removed with it
    if len(sys.argv) < 2:
        print("\n".join(cases))
    else:
        guardian.start()
    for name in sys.argv[1:]:
        try:
            cases[name]()
            print(f"{name}: {verdict}")
        except Skip as reason:
            print(f"{name}: skipped, {reason}")
            sys.exit(77)
        except Exception:
            traceback.print_exc()
            sys.exit(1)


given_ports = set()


def free_port(kind=socket.SOCK_STREAM):
    """A port that the kernel does not give to connections of other tests meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)  # below net.ipv4.ip_local_port_range
        if port in given_ports:
            continue
        given_ports.add(port)
        with socket.socket(socket.AF_INET, kind) as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # another socket has it


def make_file(path, size, seed=1):
    """Makes a file of reproducible bytes, and returns its SHA-256."""
    import hashlib
    import random
    data = random.Random(seed).randbytes(size)
    with open(path, "wb") as out:
        out.write(data)
    return hashlib.sha256(data).hexdigest()


def sha256(path):
    import hashlib
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def calls_between_marks(trace):
    """The lines of strace(1)'s output between the marks of netbench."""
    inside, calls = False, []
    for line in open(trace, errors="replace"):
        if "/netbench-begin" in line:
            inside = True
        elif "/netbench-end" in line:
            return calls
        elif inside and "sched_yield" not in line and "resumed>" not in line:
            calls.append(line.strip())
    raise AssertionError(f"no marks in {trace}")

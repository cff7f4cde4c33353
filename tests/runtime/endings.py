"""A process from its first socket to its end, with the library itself: what it was started with, what it says when
something is not as asked for, a crash inside, and its exit.   endings.py NAME...   (no name: lists them)"""
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
from harness import BUILD, Side, check, free_port, run_named  # noqa: E402

CASES = {}
PYTHON = "/usr/bin/python3"


def case(function):
    CASES[function.__name__] = function
    return function


def asked(side, what, *pid):
    """What `bypass` says about the only process of this side, or about the one with that number."""
    done = subprocess.run([os.path.join(BUILD, "bypass"), what, "--json", *map(str, pid)], env=side.environment("server", LD_PRELOAD=""),
                          capture_output=True, text=True)
    processes = json.loads(done.stdout)["processes"]
    check(len(processes) == 1, f"bypass {what}: {done.stdout} {done.stderr}")
    return processes[0]


def until_end_of_input(script):
    """`script`, then a word that says that it is done. Then the program lives until its standard input ends."""
    return f"import sys\n{script}\nprint('done', flush=True)\nsys.stdin.read()"


class Asked:
    """A program that has run `script` and lives inside the block."""

    def __init__(self, side, script, **variables):
        self.child = subprocess.Popen([PYTHON, "-c", until_end_of_input(script)], env=side.environment("server", **variables),
                                      cwd=side.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True)

    def __enter__(self):
        line = self.child.stdout.readline()
        check(line == "done\n", f"{line!r} {self.child.poll()}")
        return self

    def __exit__(self, *_):
        _, self.errors = self.child.communicate(timeout=20)


def is_connected(path):
    """Whether a process is connected to the Unix socket of that path. The accepted end also has the path's name."""
    return any(line.split()[5] == "03" for line in open("/proc/net/unix") if line.rstrip().endswith(f" {path}"))


SOCKET = "import socket; s = socket.socket()"  # the import alone makes an epoll set


def problems():
    """Each case: variables, the reason that `bypass why` names, and how the message begins."""
    return [
        ({"BYPASS_MTU": "1"}, "config_problem", "BYPASS_MTU=1 (environment): "),
        ({"BYPASS_PROT": "x"}, "config_problem", "BYPASS_PROT=x (environment): "),
        ({"BYPASS_PORT": "dpdk:net_nosuch0"}, "port_unavailable", "BYPASS_PORT=dpdk:net_nosuch0: "),
        ({"BYPASS_PORT": "vhost:/proc/nowhere/wire"}, "port_unavailable", "BYPASS_PORT=vhost:/proc/nowhere/wire: "),
        ({"BYPASS_PORT": "pci:0000:7f:1f.7"}, "port_unavailable", "BYPASS_PORT=pci:0000:7f:1f.7: no such device (see: lspci -D)"),
        ({"BYPASS_PORT": "af_packet:bp-nosuch"}, "port_unavailable", "BYPASS_PORT=af_packet:bp-nosuch: "),
        ({"BYPASS_PORT": "verbs:bp-nosuch"}, "port_unavailable", "BYPASS_PORT=verbs:bp-nosuch: no RDMA device of that name"),
        ({"BYPASS_PORT": "virtio:/dev/null"}, "port_unavailable", "BYPASS_PORT=virtio:/dev/null: is no socket"),
        ({"BYPASS_PORT": "tap:bp-a;tap:bp-a", "BYPASS_ADDR": "10.9.0.1/24;10.9.1.1/24"}, "config_problem",
         "BYPASS_PORT=tap:bp-a;tap:bp-a (environment): has 'tap:bp-a' twice"),
        ({"BYPASS_PORT": "auto"}, "config_problem", "BYPASS_PORT=auto (environment): finds no RDMA device"),
    ]


@case
def first_socket_finds_problems_and_why_tells_them():
    for variables, reason, start in problems():
        with Side("bypass") as side:
            with Asked(side, SOCKET, **variables) as program:
                whys = asked(side, "why")["whys"]
                check([why["reason"] for why in whys] == [reason], f"{variables}: {whys}")
                check(whys[0]["detail"].startswith(start), f"{variables}: {whys}")
            check(f": {start}" in program.errors, f"{variables}: {program.errors}")
            check(os.listdir(side.path("run")) == [], f"{variables}: the stats file stays")


@case
def port_of_another_process_is_told_before_a_call_fails():
    """Two processes that are not of one family. It is told when the second one binds, which succeeds, and not only in the
    call that opens the port."""
    bind = f"{SOCKET}; s.bind(('10.9.0.1', 0))"
    taken = {"vhost": "another process serves this path", "virtio": "another client is connected there"}
    for kind, text in taken.items():
        with Side("bypass") as side, contextlib.ExitStack() as others:
            wire = side.path("wire")
            if kind == "virtio":
                others.enter_context(Asked(side, f"{bind}; s.listen()".replace("0.1", "0.2"), BYPASS_ADDR="10.9.0.2/24"))
            one = {"BYPASS_PORT": f"{kind}:{wire}", "BYPASS_ADDR": "10.9.0.1/24"}
            others.enter_context(Asked(side, f"{bind}; s.listen()", **one))
            side.until(lambda: os.path.exists(wire), "the first one has the port")
            if kind == "virtio":
                side.until(lambda: is_connected(wire), "the first one is connected")
            with Asked(side, bind, **one) as second:
                whys = asked(side, "why", second.child.pid)["whys"]
                check([why["reason"] for why in whys] == ["port_unavailable"], f"{kind}: {whys}")
                check(whys[0]["detail"].startswith(f"BYPASS_PORT={kind}:{wire}: {text}, and it is no fork"), f"{kind}: {whys}")
            check(f"{text}, and it is no fork" in second.errors, f"{kind}: {second.errors}")


@case
def strict_process_leaves_no_stats_file():
    for variables, _, start in problems():
        with Side("bypass") as side:
            done = subprocess.run([PYTHON, "-c", SOCKET], capture_output=True, text=True, timeout=60,
                                  env=side.environment("server", BYPASS_STRICT="1", **variables))
            check(done.returncode == 78 and start in done.stderr, f"{variables}: {done}")
            check(os.listdir(side.path("run")) == [], f"{variables}: the stats file stays")


@case
def rdma_device_that_is_not_there_is_told():
    script = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('10.9.0.2', 9)); print('on', flush=True); sys.stdin.read()"
    for strict, status in (("1", 78), ("0", 0)):
        with Side("bypass") as side:
            program = subprocess.Popen([PYTHON, "-c", script], env=side.environment("server", BYPASS_RDMA="bp-nosuch", BYPASS_STRICT=strict), text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            said = program.stdout.readline()
            whys = asked(side, "why")["whys"] if said else []
            output, errors = program.communicate(timeout=60)
            check(program.returncode == status and ": BYPASS_RDMA=bp-nosuch: " in errors, f"{strict}: {program.returncode} {errors}")
            reasons = [why["reason"] for why in whys if why["reason"] != "link_down"]  # nobody is at the wire's other end
            check(reasons == (["no_rdma"] if status == 0 else []), f"{strict}: {whys}")


@case
def run_directory_that_cannot_be_is_told():
    for strict, status in (("1", 78), ("0", 0)):
        with Side("bypass") as side:
            done = subprocess.run([PYTHON, "-c", "import socket; socket.socket()"], capture_output=True, text=True, timeout=60,
                                  env=side.environment("server", BYPASS_RUN_DIR="/proc/nowhere", BYPASS_STRICT=strict))
            check(done.returncode == status and "/proc/nowhere" in done.stderr, f"{strict}: {done}")


@case
def limit_that_forbids_the_arena_is_told():
    with Side("bypass") as side:
        script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20,) * 2)\n{SOCKET}"
        with Asked(side, script) as program:
            whys = asked(side, "why")["whys"]
            check([why["reason"] for why in whys] == ["arena_unavailable"], f"{whys}")
        check("RLIMIT_FSIZE is 4194304 bytes" in program.errors, program.errors)


@case
def memory_that_the_address_space_cannot_hold_is_refused():
    with Side("bypass") as side:
        script = f"ulimit -v 4194304; exec {PYTHON} -c '{SOCKET}'"
        done = subprocess.run(["/bin/sh", "-c", script], env=side.environment("server", BYPASS_MEMORY="8G"), capture_output=True,
                              text=True, timeout=60)
        check("BYPASS_MEMORY=8G (environment): " in done.stderr and "accepted is up to 455M" in done.stderr, f"{done}")


@case
def late_failure_of_a_listeners_port_is_told():
    """The progress thread opens the port of a bare listener, after listen() has returned."""
    with Side("bypass") as side:
        open(side.path("wire"), "w").close()  # a file that is no socket stands in the way
        port = free_port()
        script = f"{SOCKET}; s.bind(('0.0.0.0', {port})); s.listen()"
        with Asked(side, script) as program:
            while not asked(side, "why")["whys"]:
                check(program.child.poll() is None, "the program ended")
            whys = asked(side, "why")["whys"]
            check(whys[0]["reason"] == "port_unavailable", f"{whys}")
            check(whys[0]["detail"].startswith(f"BYPASS_PORT=vhost:{side.path('wire')}: "), f"{whys}")


@case
def program_that_overwrites_its_environment_keeps_its_port():
    script = f"""
import ctypes
block = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), 'environ')
at = 0
while block[at]:
    ctypes.memset(block[at], ord('x'), len(ctypes.string_at(block[at])))
    at += 1
{SOCKET}
assert 'bypass-arena' in open('/proc/self/maps').read()"""
    with Side("bypass") as side, Asked(side, script):
        check(asked(side, "stat")["profile"] == side.profile, "not the configuration it was started with")


@case
def crash_inside_is_reported_then_the_programs_handler_runs():
    """The progress thread opens the port of a bare listener. Then its memory is taken away from the library."""
    script = f"""
import ctypes, faulthandler
faulthandler.enable()
s = socket.create_server(('0.0.0.0', {free_port()}))
print('listens', flush=True)
sys.stdin.readline()
for line in open('/proc/self/maps'):
    if 'bypass-arena' in line:
        low, high = (int(x, 16) for x in line.split()[0].split('-'))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(low), ctypes.c_size_t(high - low), 0)
s.accept()"""
    with Side("bypass") as side:
        child = subprocess.Popen([PYTHON, "-c", f"import socket, sys{script}"], env=side.environment("server"), cwd=side.dir,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check(child.stdout.readline() == "listens\n", "no listener")
        while not any(port["open"] for port in asked(side, "stat")["ports"]):
            check(child.poll() is None, "the program ended")
        _, errors = child.communicate("go on\n", timeout=60)
        report, handler = errors.find("crash inside libbypass: SIGSEGV"), errors.find("Fatal Python error: Segmentation fault")
        check(0 <= report < handler, errors)
        check(child.returncode == -11, f"exit {child.returncode}")


@case
def handler_on_top_of_the_opening_does_not_wait_for_itself():
    """While a call opens the ports, a timer's handler makes a call that needs them: accept, with the signal's number, 14,
    as the descriptor."""
    script = f"""
import ctypes, os, socket
listener = socket.create_server(('0.0.0.0', {free_port()}))
listener.setblocking(False)
os.dup2(listener.fileno(), 14)
datagrams = socket.socket(type=socket.SOCK_DGRAM)
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal(14, ctypes.cast(libc.accept, ctypes.c_void_p))
every_ms = (ctypes.c_long * 4)(0, 1000, 0, 1000)
libc.setitimer(0, every_ms, None)
datagrams.sendto(b'x', ('10.9.0.2', 9))
libc.setitimer(0, (ctypes.c_long * 4)(), None)
print('opened')"""
    with Side("bypass") as side:
        check(side.run("server", PYTHON, "-c", script, timeout=20) == b"opened\n", "it did not open")


@case
def huge_pages_that_are_not_there_are_told():
    """When all ports have been tried, the log says how many are open. It says nothing of a port that fails then."""
    if open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read().strip() != "0":
        print("this machine has free huge pages: not shown")
        return
    with Side("bypass") as side:
        script = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('10.9.0.2', 9))"
        for value, status in (("on", 78), ("auto", 0), ("off", 0)):
            done = subprocess.run([PYTHON, "-c", script], env=side.environment("server", BYPASS_HUGEPAGES=value, BYPASS_STRICT="1", BYPASS_LOG="info"),
                                  capture_output=True, text=True, timeout=60)
            check(done.returncode == status, f"{value}: {done}")
            check((": BYPASS_HUGEPAGES=on: " in done.stderr) == (value == "on"), f"{value}: {done}")
            check(f"open: {int(value != 'on')} of 1 port(s)" in done.stderr and done.stderr.count("port(s)") == 1, f"{value}: {done}")


@case
def handler_that_ends_the_process_inside_the_lock_does_not_enter_the_stack():
    """The arena's first pages, which hold the lock, stay. The other pages are taken away. So the next socket faults with
    the lock held."""
    script = f"""{SOCKET}
import ctypes
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal(11, ctypes.cast(libc._exit, ctypes.c_void_p))  # ends with the signal's number as status
low, high = next([int(x, 16) for x in line.split()[0].split('-')] for line in open('/proc/self/maps') if 'bypass-arena' in line)
libc.mprotect(ctypes.c_void_p(low + (1 << 20)), ctypes.c_size_t(high - low - (1 << 20)), 0)
socket.socket()"""
    with Side("bypass") as side:
        done = subprocess.run([PYTHON, "-c", script], env=side.environment("server"), capture_output=True, text=True, timeout=60)
        check(done.returncode == 11, f"{done}")
        check(os.listdir(side.path("run")) == [], "the stats file stays")


@case
def exit_waits_for_the_thread_that_delivers():
    """Two threads end the process at once. The second must not end it while the first one delivers."""
    size = 3 << 20
    expected = f"{size} {hashlib.sha256(random.Random(3).randbytes(size)).hexdigest()}"
    script = """
import ctypes, random, socket, sys, threading
address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
end = ctypes.CDLL(None)._exit  # unlike os._exit it lets other threads run
together = threading.Barrier(2)
def leave():
    together.wait()
    end(0)
s = socket.create_connection((address, port))
s.sendall(random.Random(3).randbytes(size))
threading.Thread(target=leave).start()
leave()"""
    with Side("bypass") as side:
        port, rounds = free_port(), 5
        sink = side.start_python("server", "sink.py", side.address, port, rounds, until="ready")
        for _ in range(rounds):
            side.run("client", PYTHON, "-c", script, side.address, port, size)
        check(side.end(sink) == 0, "the sink failed")
        arrived = [line for line in side.output(sink).split("\n") if line.startswith(f"{size} ")]  # the log may stand between
        check(arrived == [expected] * rounds, side.output(sink))


run_named(CASES, "shown")

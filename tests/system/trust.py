"""What a less privileged user, or a process that has given privileges up, can do to other processes through the
library.   trust.py NAME...   (no name: lists them)"""
import os
import shutil
import subprocess

from harness import LIB, Side, Skip, check, compare, free_port, run_named

CASES = {}
NOBODY = 65534


def case(function):
    CASES[function.__name__] = function
    return function


def need_root():
    if os.geteuid() != 0:
        raise Skip("only root gives root up")


# --- A process that has given root up

def parent_goes_on(give_up, side="local", expect="unharmed", **environment):
    """A child gives root up, and then overwrites each page of the library's shared memory that it can find. Its parent still
    makes sockets and uses them."""
    need_root()
    with Side(side) as wired:
        port = free_port()
        child = wired.start_python("server", "gives_root_up.py", wired.address, port, give_up, until=expect, **environment)
        check(wired.end(child) == 0, wired.output(child))
        return wired.output(child)


@case
def root_given_up_by_setresuid(): parent_goes_on("os.setresuid(65534, 65534, 65534)")


@case
def root_given_up_by_setuid(): parent_goes_on("os.setgid(65534); os.setuid(65534)")


@case
def root_given_up_by_setreuid(): parent_goes_on("os.setreuid(65534, 65534)")


@case
def root_given_up_by_system_call(): parent_goes_on("libc.syscall(117, 65534, 65534, 65534)")


@case
def capabilities_given_up(): parent_goes_on("capset(0)")


@case
def root_given_up_in_a_user_namespace(): parent_goes_on("libc.unshare(0x10000000)")


@case
def root_given_up_beside_a_port():
    """The process has closed its sockets on the port before."""
    parent_goes_on("listener.close(); os.setresuid(65534, 65534, 65534)", side="bypass")


def goes_on(how, **environment):
    """After a worker has given root up, its sockets work as they do without the library."""
    need_root()

    def scenario(side):
        port = free_port()
        child = side.start_python("server", "worker_goes_on.py", side.address, port, how, until="done", **environment)
        check(side.end(child) == 0, side.output(child))
        return [line for line in side.output(child).splitlines() if line.startswith(("child", "parent"))]

    compare(scenario, lambda: Side("local"), uses_fast_path=False)


@case
def worker_as_another_user(): goes_on("os.setgid(65534); os.setuid(65534)")


@case
def worker_that_stays_root(): goes_on("os.setgid(65534); os.setegid(0)")


@case
def root_given_up_by_threads_at_once():
    need_root()
    with Side("local") as side:
        parent = side.start_python("server", "threads_give_root_up.py", side.address, free_port(), until="done")
        ends = side.output(parent)
        check(f"done {[0] * 10}" in ends, ends)


@case
def family_that_trusts_its_members():
    """BYPASS_TRUST=family: the processes share memory as before, and `bypass why` says so."""
    need_root()
    with Side("local") as side:
        side.start_python("server", "drops_and_waits.py", side.address, free_port(), until="dropped", BYPASS_TRUST="family")
        why = side.why()
        check("shares_with_less" in why and "gave_up_rights" not in why, why)


@case
def what_is_given_up_is_said():
    need_root()
    with Side("local") as side:
        side.start_python("server", "drops_and_waits.py", side.address, free_port(), until="dropped")
        why = side.why()
        check("gave_up_rights" in why and "shares_with_less" not in why, why)


@case
def forked_child_of_a_ports_owner():
    """The child has neither the port's memory nor its parent's statistics. With these it could harm its parent after it has
    given rights up."""
    with Side("bypass") as side:
        child = side.start_python("server", "forks_on_a_port.py", side.address, free_port(), until="done")
        check(side.end(child) == 0 and "in common: []" in side.output(child), side.output(child))
        check("before: 0" not in side.output(child), side.output(child))


# --- Folders and files

@case
def arena_has_another_address_each_time():
    with Side("local") as side:
        def address():
            child = side.start_python("server", "drops_and_waits.py", side.address, free_port())
            at = side.until(lambda: [line.split("-")[0] for line in open(f"/proc/{child.pid}/maps") if "memfd:bypass-arena" in line], "an arena")
            side.kill(child)
            return at[0]
        check(len({address() for _ in range(4)}) > 1, "it is where it was")


# --- Programs that have more rights than their caller

# In a mount namespace of its own, where every program gets the library. For such programs ld.so ignores LD_PRELOAD.
GIVEN_BY_THE_SYSTEM = """
set -e
cp -a /etc "$FOLDER/etc"
echo "$LIBRARY" > "$FOLDER/etc/ld.so.preload"
mount --bind "$FOLDER/etc" /etc
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$FOLDER/python3" "$@"
"""
TALKS_TO_ITSELF = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
for _ in range(50): one.sendall(bytes(1000)); other.recv(1000, socket.MSG_WAITALL)
print("rights of", os.geteuid(), "with the library" if "libbypass.so" in open("/proc/self/maps").read() else "", flush=True)
"""


@case
def set_user_id_program_reads_nothing_of_its_callers():
    """Under /etc/ld.so.preload a set-user-ID program gets the library and its caller's variables. It opens no file that
    they name, says nothing, and makes no run directory."""
    need_root()
    with Side("kernel") as side:
        os.chmod(side.dir, 0o755)
        shutil.copy(os.path.realpath("/usr/bin/python3"), side.path("python3"))
        os.chmod(side.path("python3"), 0o4755)
        os.mkdir(side.path("nobodys"))
        os.chown(side.path("nobodys"), NOBODY, NOBODY)
        settings = {"BYPASS_LOG": "debug", "BYPASS_LOG_FILE": side.path("nobodys/log"), "BYPASS_PORT": "no such port",
                    "BYPASS_STRICT": "1", "BYPASS_LOCAL": "on", "BYPASS_RUN_DIR": side.path("nobodys/run")}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", GIVEN_BY_THE_SYSTEM, "sh", "-I", "-c", TALKS_TO_ITSELF],
                              env={**side.environment("server"), **settings, "FOLDER": side.dir, "LIBRARY": LIB},
                              capture_output=True, text=True, timeout=60)
        check(done.returncode == 0 and done.stdout == "rights of 0 with the library\n", f"{done}")
        check(done.stderr == "", done.stderr)
        check(os.listdir(side.path("nobodys")) == [], f"made: {os.listdir(side.path('nobodys'))}")


# --- Names of sockets

CALLS_ITSELF_A_PUMP = """
import os, socket, sys
folder = sys.argv[1]
def name(role): return b"\\0bypass-pump " + (bytes(8) + bytes([10, 0, 0, 1]) * 8 + bytes([22, 0, 22, 0, socket.AF_INET]) + role).hex().encode()
def told(call):
    name = call()
    return "the kernel's" if isinstance(name, (bytes, str)) else name
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/listener")
listener.listen()
for role in b"", b"\\0", b"\\1":
    client = socket.socket(socket.AF_UNIX)
    client.bind(name(role))
    client.connect(folder + "/listener")
    print(told(listener.accept()[0].getpeername), flush=True)
    client.close()
one, other = socket.socketpair()
one.bind(name(b"\\0"))
other.bind(name(b"\\1").replace(b"00000000", b"00000001", 1))
print(told(one.getpeername), flush=True)
"""


@case
def stranger_that_calls_itself_a_pump():
    """A client chooses the name of its Unix socket. getpeername() tells the server that name, whatever it is."""
    def scenario(side):
        child = side.start("server", "/usr/bin/python3", "-I", "-c", CALLS_ITSELF_A_PUMP, side.dir)
        check(side.end(child) == 0, side.output(child))
        check(side.output(child).split("\n")[:4] == ["the kernel's"] * 4, side.output(child))
        return side.output(child)

    compare(scenario, lambda: Side("local"), uses_fast_path=False)


# --- Secrets

NO_RANDOM_NUMBERS = """
import ctypes, signal, socket, struct
SECCOMP_MODE_FILTER, GETRANDOM, ALLOW, ENOSYS = 2, 318, 0x7fff0000, 0x00050026
code = [(0x20, 0, 0, 0), (0x15, 0, 1, GETRANDOM), (0x06, 0, 0, ENOSYS), (0x06, 0, 0, ALLOW)]
lines = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(lines)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.syscall(157, 22, SECCOMP_MODE_FILTER, program, 0, 0) == 0
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
for _ in range(50): one.sendall(bytes(1000)); other.recv(1000, socket.MSG_WAITALL)
print("talked", flush=True)
signal.pause()
"""


@case
def without_random_numbers_there_are_no_keys():
    """If the kernel gives no random numbers, the program has the kernel's sockets. No key is made from a clock."""
    with Side("local") as side:
        child = side.start("server", "/usr/bin/python3", "-I", "-c", NO_RANDOM_NUMBERS, until="talked")
        why = side.why(child)
        check("syscall_filter" in why, why)


EXITS_UNDER_A_FILTER = """
import ctypes, socket, struct, sys
SECCOMP_MODE_FILTER, UNLINK, ALLOW, KILL = 2, 87, 0x7fff0000, 0x80000000
code = [(0x20, 0, 0, 0), (0x15, 0, 1, UNLINK), (0x06, 0, 0, KILL), (0x06, 0, 0, ALLOW)]
lines = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(lines)))
libc = ctypes.CDLL(None)
socket.create_server(("127.0.0.1", 0)).close()
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, SECCOMP_MODE_FILTER, program, 0, 0) == 0
print("exits", flush=True)
"""


@case
def exit_under_a_filter_makes_no_call_of_ours():
    """A filter would kill the process if it removed its statistics file, so others remove it. (sshd's child before the login.)"""
    with Side("local") as side:
        child = side.start("server", "/usr/bin/python3", "-I", "-c", EXITS_UNDER_A_FILTER, until="exits")
        check(side.end(child) == 0, f"it ended with {child.returncode}")


ASKS_UNDER_A_FILTER = """
import ctypes, os, socket, struct
SECCOMP_MODE_FILTER, SOCKET, GETSOCKNAME, ALLOW, KILL = 2, 41, 51, 0x7fff0000, 0x80000000
code = [(0x20, 0, 0, 0), (0x15, 1, 0, SOCKET), (0x15, 0, 1, GETSOCKNAME), (0x06, 0, 0, KILL), (0x06, 0, 0, ALLOW)]
lines = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(lines)))
libc = ctypes.CDLL(None)
one, other = socket.socketpair()
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, SECCOMP_MODE_FILTER, program, 0, 0) == 0
for name in socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_PASSCRED: print(one.getsockopt(socket.SOL_SOCKET, name))
print(len(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
for call in lambda: one.getsockopt(socket.IPPROTO_TCP, 1), lambda: one.setsockopt(socket.IPPROTO_TCP, 1, 1):
    try: call()
    except OSError as error: print(error.strerror)
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
print(other.getpeername() == "", "asked", flush=True)
os._exit(0)
"""


@case
def questions_under_a_filter_make_no_call_of_ours():
    """A process that may not call getsockname() and socket() asks its Unix sockets for options. None of them is the
    library's."""
    def scenario(side):
        child = side.start("server", "/usr/bin/python3", "-I", "-c", ASKS_UNDER_A_FILTER)
        check(side.end(child) == 0, f"it ended with {child.returncode}: {side.output(child)}")
        check("True asked" in side.output(child), side.output(child))
        return side.output(child)

    compare(scenario, lambda: Side("local"), uses_fast_path=False)


run_named(CASES, "shown")

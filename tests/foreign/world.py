"""Where one suite runs in one wiring: a temporary folder, and for each command network, mount and process namespaces that
end with the command, also when the harness is killed."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
import guardian  # noqa: E402
from harness import BUILD, LIB, LONG, Failure, Skip, check, preload  # noqa: E402,F401

HERE = os.path.dirname(os.path.abspath(__file__))
LOOPBACK = "127.0.0.1"
OURS, KERNELS = "10.9.0.1", "10.9.0.2"  # of the veth's two ends; the first is the port's where there is one

# A wiring's name, what the library is told in it, and the wiring whose results it must have. `kernel_port` is the kernel's
# own sockets at the address that the port has in `port`: a suite may differ between a loopback address and another one.
SETTINGS = {
    "kernel": None,
    "preload": {},
    "local": {"BYPASS_LOCAL_AFTER": "1"},
    "kernel_port": None,
    "port": {"BYPASS_PORT": "af_packet:s0", "BYPASS_ADDR": f"{OURS}/24"},
}
JUDGE = {"preload": "kernel", "local": "kernel", "port": "kernel_port"}

# Runs as process 1 of its namespaces. /tmp is the world's own, so that nothing of a suite's stays there; what is needed of
# the real one is mounted into it first. The command is a child: a process 1 ignores signals that it does not handle.
ENTER = """
set -e
ip link set lo up
ip link add s0 type veth peer name s1
ip link set s0 up
ip link set s1 up
ip addr add $KERNELS/24 dev s1  # getaddrinfo counts no loopback address as one (AI_ADDRCONFIG)
if [ "$WORLD_ADDRESS" = kernel ]; then ip addr add $OURS/32 dev lo; fi
for kept in $WORLD_KEEPS; do
  mkdir -p "$WORLD/tmp${kept#/tmp}"
  mount --bind "$kept" "$WORLD/tmp${kept#/tmp}"
done
mount --bind "$WORLD/tmp" /tmp
mount --bind "$WORLD/hosts" /etc/hosts
cd "$WORLD_CWD"
set +e
env -u WORLD -u WORLD_ADDRESS -u WORLD_KEEPS -u WORLD_CWD -u OURS -u KERNELS "$@"
status=$?
exit $status
"""

library_copy = LIB


def take_library():
    """A copy of the library and its plugins: a build that goes on meanwhile takes nothing away from a run of hours."""
    global library_copy
    check(os.path.exists(LIB), f"{LIB} is not built")
    folder = tempfile.mkdtemp(prefix="bypass-foreign-library.", dir="/var/tmp")
    guardian.entrust("folder", folder)
    os.chmod(folder, 0o755)
    for file in os.listdir(BUILD):
        if file.startswith("libbypass") and file.endswith(".so"):
            shutil.copy2(os.path.join(BUILD, file), folder)
    library_copy = os.path.join(folder, os.path.basename(LIB))


class World:
    """`address` is where the suite's servers listen, `client` where a client of another process, on the kernel, connects
    from. `run` is all that a suite needs."""

    def __init__(self, wiring, keeps=()):
        if os.geteuid() != 0:
            raise Skip("only root makes network namespaces")
        self.wiring = wiring
        self.settings = SETTINGS[wiring]
        self.bent = wiring in ("kernel_port", "port")
        self.address = OURS if self.bent else LOOPBACK
        self.dir = tempfile.mkdtemp(prefix=f"bypass-foreign-{wiring}.", dir="/var/tmp")
        guardian.entrust("folder", self.dir)
        os.chmod(self.dir, 0o755)  # a suite may change its user
        os.mkdir(self.path("tmp"))
        os.chmod(self.path("tmp"), 0o1777)
        self.log = self.path("log")
        open(self.path("empty.toml"), "w").close()
        with open(self.path("hosts"), "w") as hosts:
            hosts.write(f"{self.address} localhost\n{LOOPBACK} {os.uname().nodename}\n::1 ip6-localhost ip6-loopback\n")
            hosts.write("" if self.bent else "::1 localhost\n")
        self.keeps = [path for path in (ROOT, BUILD, HERE, *keeps) if path.startswith("/tmp/")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        guardian.clear_folder(self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def copy(self, folder, name="tree"):
        """A copy of a suite's folder that it may write to; made once."""
        if not os.path.exists(self.path(name)):
            subprocess.run(["cp", "-a", "--reflink=auto", folder, self.path(name)], check=True)
        return self.path(name)

    def note(self, line):
        """A line of ours in the log; returns where the log goes on."""
        with open(self.log, "a") as log:
            log.write(f"{line}\n")
        return os.path.getsize(self.log)

    def library(self):
        """What a command is told so that it runs under the library; nothing in a wiring of the kernel's."""
        if self.settings is None:
            return {}
        return {"BYPASS_RUN_DIR": self.path("run"), "BYPASS_CONFIG": self.path("empty.toml"), **self.settings, **preload(library_copy)}

    def run(self, command, cwd=None, env=(), library=True, in_front=None, timeout=120, quiet=None, grows=None):
        """Runs a command to its end; what it says goes to the log. `in_front`: what is
        loaded before the library. Returns its exit status, or None when it was
        ended: after `timeout` seconds, or after `quiet` seconds in which the file `grows` did not grow."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("BYPASS_", "LD_"))}
        own.update(LC_ALL="C.UTF-8", TMPDIR="/tmp", HOME="/tmp", TZ="UTC", OURS=OURS, KERNELS=KERNELS, WORLD=self.dir,
                   WORLD_CWD=cwd or self.path("tmp"), WORLD_KEEPS=" ".join(self.keeps),
                   WORLD_ADDRESS={"kernel_port": "kernel", "port": "port"}.get(self.wiring, ""))
        told = dict(env, **(self.library() if library else {}))
        if in_front:
            told["LD_PRELOAD"] = f"{in_front}:{told.get('LD_PRELOAD', '')}".rstrip(":")
        # The namespaces' process 1 goes with unshare, which goes with us; whatever they hold goes with process 1.
        shell = ["setpriv", "--pdeathsig", "KILL", "unshare", "-n", "-m", "-p", "--fork", "--mount-proc", "--kill-child=KILL",
                 "bash", "-c", ENTER, "enter"]
        with open(self.log, "ab") as out:
            child = subprocess.Popen(["nice", *shell, *(f"{name}={value}" for name, value in told.items()), *map(str, command)],
                                     env=own, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     start_new_session=True)
        try:
            return self.wait(child, timeout, quiet, grows)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            end_inhabitants(self.dir)

    @staticmethod
    def wait(child, timeout, quiet, grows):
        end = time.monotonic() + timeout
        size, since = -1, time.monotonic()
        while True:
            try:
                return child.wait(min(1.0, max(0.01, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if quiet is not None:
                new = os.path.getsize(grows) if os.path.exists(grows) else 0
                size, since = (size, since) if new == size else (new, now)
            if now >= end or quiet is not None and now - since > quiet:
                return None


def end_inhabitants(folder):
    """What ends by SIGKILL is still there for a moment."""
    for pid in guardian.inhabitants(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def bend(folder, address, endings, numbers=False):
    """Writes another address where a suite's sources have the loopback's; `numbers`: also for C's name of it."""
    if address == LOOPBACK:
        return
    number = "0x%02x%02x%02x%02x" % tuple(map(int, address.split(".")))
    for where, _, files in os.walk(folder):
        for path in (os.path.join(where, name) for name in files if name.endswith(endings)):
            text = old = open(path, encoding="latin-1").read()
            text = text.replace(LOOPBACK, address)
            if numbers:
                text = text.replace("INADDR_LOOPBACK", number)
            if text != old:
                with open(path, "w", encoding="latin-1") as file:
                    file.write(text)

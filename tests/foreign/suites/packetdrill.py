"""Google's packetdrill, from a folder that the caller names: its TCP scripts in wire mode, the program under test here and the
wire's other end in a namespace of its own."""
import os
import re
import shlex

import sources
from unit import Programs, by_status

# packetdrill as it is would starve or race what it tests on a small machine.
CHANGES = {
    "run.c": [("if (num_cpus <= 1)", "if (num_cpus > 0)"),  # no real-time priority
              ("TARGET_JIFFY_TICKS = 10", "TARGET_JIFFY_TICKS = 2"),  # it spins so long before each script
              ("if (state->num_events > 0 && wait_usecs",  # the wire server would spin through every wait
               "if ((state->num_events > 0 || state->config->is_wire_server) && wait_usecs")],
    "wire_server.c": [  # it would reset the connection at its last packet, while the client still makes the last calls
        ('DEBUGP("wire_server_thread: finished test successfully\\n");',
         "{ enum wire_op_t op; void *b = NULL; int n; wire_conn_read(wire_server->wire_conn, &op, &b, &n); }")],
    "wire_client.c": [  # the kernel takes a frame before its sender's call returns; a thread of the library's has to wake
        ("\tif (ntohl(done.result) == STATUS_ERR) {", "\tusleep(3000);\n\tif (ntohl(done.result) == STATUS_ERR) {")],
}
PORT = {"BYPASS_PORT": "netdev:t0", "BYPASS_ADDR": "192.168.0.1/16", "BYPASS_GATEWAY": "192.168.0.2", "BYPASS_MTU": "1500",
        "BYPASS_MAC": "02:00:00:00:01:01", "BYPASS_RULES": "kernel tcp connect 10.200.0.0/24", "BYPASS_LOCAL": "off", "BYPASS_RDMA": "off",
        "BYPASS_EXIT_LINGER_MS": "0", "BYPASS_TCP_RCVBUF": "15M", "BYPASS_TCP_SYN_RETRIES": "5"}


class Suite(Programs):
    name = "packetdrill"
    packages = ("gcc", "make", "flex", "bison", "python3", "iproute2", "ethtool", "procps")
    wirings = ("port",)
    library = False  # its control connection's other end is to be the kernel's: the script gives the library to one program
    timeout = 60

    def prepare(self):
        def build(folder):
            sources.copy_given("packetdrill", "google/packetdrill's work tree or Git directory", folder)
            where = f"{folder}/gtests/net/packetdrill"
            for file, changes in CHANGES.items():
                text = open(f"{where}/{file}").read()
                for old, new in changes:
                    text = text.replace(old, new)
                open(f"{where}/{file}", "w").write(text)
            sources.run("./configure", cwd=where)
            sources.run("nice", "make", "packetdrill", cwd=where)
            sources.run("cc", "-O1", "-shared", "-fPIC", "-o", f"{folder}/pump.so", f"{self.here}/peers/packetdrill_pump.c")
        self.built = sources.made("packetdrill", build)
        net = f"{self.built}/gtests/net"
        self.tests = sorted(os.path.relpath(os.path.join(where, file), net)[:-4] for where, _, files in os.walk(f"{net}/tcp")
                            for file in files if file.endswith(".pkt") and not file.endswith(("v6.pkt")))

    def folder(self, world):
        """A copy of the scripts whose helpers suit the side under test."""
        tree = world.path("tree")
        if not os.path.exists(tree):
            os.mkdir(tree)
            for part in ("tcp", "common"):
                sources.run("cp", "-a", f"{self.built}/gtests/net/{part}", tree)
            for where, _, files in os.walk(tree):
                for path in (os.path.join(where, file) for file in files if file.endswith((".pkt", ".sh", ".py"))):
                    if not os.path.islink(path):
                        rewrite(path, world.settings is not None)
        return tree

    def command(self, world, test):
        told = {"LD_PRELOAD": f"{self.built}/pump.so"}
        if world.settings is not None:
            told = dict(world.library(), **PORT)
            told["LD_PRELOAD"] += f":{self.built}/pump.so"
        side = "kernel" if world.settings is None else "library"
        words = " ".join(shlex.quote(f"{name}={value}") for name, value in told.items())
        return ["env", f"LIBRARY={words}", "bash", f"{self.here}/peers/packetdrill.sh", side,
                f"{self.built}/gtests/net/packetdrill/packetdrill", f"{self.folder(world)}/{test}.pkt"]

    def verdicts(self, test, status, said):
        return {test: by_status(status)}


def rewrite(path, library):
    text = old = open(path, errors="surrogateescape").read()
    text = text.replace("/tmp/sysctl_restore_", "/tmp/restore/").replace("tun0", "t0")
    text = re.sub(r"(--tolerance_usecs=)(\d+)", lambda found: found[1] + str(max(int(found[2]), 15000)), text)
    if library:  # the kernel's counters and settings are not the library's
        text = re.sub(r"`nstat[^`]*`", "`true`", text)
        if path.endswith("/defaults.sh"):
            text = "#!/bin/sh\nexit 0\n"
        if path.endswith("/set_sysctls.py"):
            text = '#!/bin/sh\nf=/tmp/restore/$PACKETDRILL_PID.sh; echo "#!/bin/sh" >$f; chmod +x $f\n'
    if text != old:
        with open(path, "w", errors="surrogateescape") as out:
            out.write(text)

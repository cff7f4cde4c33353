"""The bypass command beside live processes: `bypass run` starts them, `bypass ss` shows their sockets.
command.py NAME...   (no name: lists them)"""
import json
import os
import re
import shlex
import shutil
import subprocess

from harness import BUILD, HERE, LIB, Failure, Side, Skip, check, free_port, run_named
from local_pairs import needs_root

CASES = {}
BYPASS = os.path.join(BUILD, "bypass")


def case(function):
    CASES[function.__name__] = function
    return function


def start_by_run(side, role, script, *arguments, until):
    """Runs a script of peers/ with `bypass run`. Only `bypass run` says where the wire is."""
    address = {"server": side.address, "client": side.client_address}[role]
    return side.start(role, BYPASS, "run", "--port", f"{side.kinds[role]}:{side.path('wire')}", "--addr", f"{address}/24",
                      "--run-dir", side.path("run"), "--strict", "--", "/usr/bin/python3", "-u",
                      os.path.join(HERE, "peers", script), *arguments, until=until,
                      LD_PRELOAD="", BYPASS_PORT="", BYPASS_ADDR="", BYPASS_RUN_DIR="")


def ss(side, *arguments):
    return side.run("server", BYPASS, "ss", *arguments, LD_PRELOAD="").decode().splitlines()


@case
def ss_shows_both_ends_of_what_run_started():
    with Side("bypass") as side:
        port, udp_port = free_port(), free_port()
        server = start_by_run(side, "server", "stream.py", "server", side.address, port, until="ready")
        echo = side.start_python("server", "udp_echo.py", "server", side.address, udp_port, until="ready",
                                 BYPASS_PORT=f"vhost:{side.path('other')}")
        client = start_by_run(side, "client", "stream.py", "client", side.address, port, 0, until="running")
        users = {name: f'users:\\(\\("python3",pid={child.pid},fd=\\d+\\)\\)'
                 for name, child in (("server", server), ("echo", echo), ("client", client))}
        here, there = re.escape(f"{side.address}:{port}"), re.escape(side.client_address) + r":\d+"
        rows = [rf"LISTEN +0 +\d+ +{here} +0\.0\.0\.0:\* +{users['server']}", rf"ESTAB +\d+ +\d+ +{here} +{there} +{users['server']}",
                rf"ESTAB +\d+ +\d+ +{there} +{here} +{users['client']}"]
        shown = rf"tcp +{rows[0]}", rf"tcp +{rows[1]}", rf"tcp +{rows[2]}", rf"udp +UNCONN +0 +0 +{re.escape(side.address)}:{udp_port} +0\.0\.0\.0:\* +{users['echo']}"

        def listed(lines, patterns):
            return len(lines) == len(patterns) and all(any(re.fullmatch(p, line) for line in lines) for p in patterns)

        # A process publishes its sockets some milliseconds after they have changed.
        side.until(lambda: listed(ss(side, "-Htuanp"), shown), "ss lists the four sockets: " + "\n".join(ss(side, "-tuanp")))
        check(ss(side, "-tan")[0].split() == "State Recv-Q Send-Q Local Address:Port Peer Address:Port".split(), ss(side, "-tan"))
        check(listed(ss(side, "-Htanp", "dport", "=", f":{port}"), rows[2:]), ss(side, "-Htanp", f"dport = :{port}"))
        check(listed(ss(side, "-Htlnp"), rows[:1]), ss(side, "-Htlnp"))
        told = r"rto:[\d.]+ rtt:[\d.]+/[\d.]+ mss:\d+ cwnd:\d+ .*bytes_received:\d+"  # once something has come
        info = lambda: ss(side, "-Htni", "--pid", client.pid, "state", "established")
        side.until(lambda: re.search(told, info()[1]), "ss tells of the connection's bytes")
        sockets = json.loads("\n".join(ss(side, "-ta", "--json", f"sport = :{port}")))["sockets"]
        check(sorted(s["state"] for s in sockets) == ["ESTAB", "LISTEN"], sockets)
        side.kill(client)
        check(ss(side, "-Htan", f"dport = :{port}") == [], "what a dead process left is no socket")


@case
def run_leaves_a_program_without_a_wire_to_itself():
    """Settings that have no use here do not change the program's result. Wrong settings end it before it begins."""
    with Side("kernel") as side:
        out = side.run("server", BYPASS, "run", "--config", side.path("empty.toml"), "/usr/bin/python3", "-c", "print('ran')")
        check(out == b"ran\n", out)
        side.run("server", BYPASS, "run", "--port", "vhost:/tmp/x", "--", "/usr/bin/python3", "-c", "print('ran')", expect=125)


@case
def run_names_what_is_not_there():
    """`bypass run` says it before the program begins. With the library alone the program runs, and the log says on which
    sockets."""
    with Side("bypass") as side:
        script = "import socket; socket.socket(); print('ran')"
        python = ["/usr/bin/python3", "-c", script]
        missing = [f"vhost:{side.path('nosuch/wire')}", "af_packet:nosuch0"]
        for port in missing:
            refused = side.run("server", BYPASS, "run", "--port", port, "--addr", "10.9.0.1/24", "--", *python, expect=125,
                               LD_PRELOAD="", BYPASS_PORT="", BYPASS_ADDR="")
            check(refused == b"", refused)
            child = side.start("server", *python, until="ran", BYPASS_PORT=port)
            side.end(child)
            told = [line for line in side.output(child).splitlines() if line != "ran"]
            check(len(told) == 1 and f"BYPASS_PORT={port}: " in told[0], told)
            check(told[0].endswith("; the program runs on the kernel's sockets"), told)
        child = side.start("server", *python, BYPASS_MTU="5")
        side.end(child)
        check("BYPASS_MTU=5 (environment): " in side.output(child) and side.output(child).count("runs on the kernel's sockets") == 1,
              side.output(child))
        child = side.start("server", *python, BYPASS_PORT=missing[0], BYPASS_STRICT="on")
        check(side.end(child) == 78 and "kernel's sockets" not in side.output(child), side.output(child))


@case
def settings_without_effect_are_named():
    with Side("bypass") as side:
        script = "import socket; socket.socket(); print('ran')"
        child = side.start("server", "/usr/bin/python3", "-c", script, BYPASS_ADDR=f"{side.address}/24,fd09::1/64")
        side.end(child)
        told = [line for line in side.output(child).splitlines() if line != "ran"]
        check(len(told) == 1 and "fd09::1/64 (environment): IPv6 on the wire is not built yet; " in told[0], told)
        for wrong in ("10.9.0.1", "10.9.0.0/24", "127.0.0.1/8", "10.9.0.1/33"):
            child = side.start("server", "/usr/bin/python3", "-c", script, BYPASS_ADDR=wrong)
            side.end(child)
            told = [line for line in side.output(child).splitlines() if line != "ran"]
            check(len(told) == 1 and f"BYPASS_ADDR={wrong} (environment): " in told[0], told)


@case
def a_run_directory_that_cannot_be_is_named():
    """With and without a port. The program still runs, unless BYPASS_STRICT is on."""
    with Side("bypass") as side:
        folder = side.path("open")
        os.mkdir(folder)
        os.chmod(folder, 0o755)
        script = "import socket; socket.socket(); print('ran')"
        for port in (f"vhost:{side.path('wire')}", ""):
            for strict in ("off", "on"):
                for run_dir in (folder, "relative"):
                    child = side.start("server", "/usr/bin/python3", "-c", script, BYPASS_RUN_DIR=run_dir, BYPASS_STRICT=strict,
                                       BYPASS_PORT=port)
                    status, told = side.end(child), side.output(child)
                    check(f"BYPASS_RUN_DIR={run_dir} (environment): " in told and "mode 0700" in told, told)
                    check((status, "ran" in told) == ((78, False) if strict == "on" else (0, True)), (status, told))


@case
def plugins_are_the_librarys_neighbours():
    """A plugin one folder above the library is not loaded. Neither is one beside it that another user owns, as in /tmp."""
    needs_root()
    with Side("bypass") as side:
        inner = side.path("inner")
        os.mkdir(inner)
        library, name = os.path.join(inner, "libbypass.so"), "libbypass-toml.so"
        shutil.copy(LIB, library)
        with open(side.path("settings.toml"), "w") as file:
            file.write("spin_us = 5\n")

        def told():
            child = side.start("server", "/usr/bin/python3", "-c", "import socket; socket.socket(); print('ran')",
                               LD_PRELOAD=library, BYPASS_CONFIG=side.path("settings.toml"), BYPASS_PORT="", BYPASS_ADDR="")
            side.end(child)
            return side.output(child)

        shutil.copy(os.path.join(BUILD, name), side.dir)
        text = told()
        check(f"the plugin {name} is not installed: looked for in {inner}, {inner}/bypass, /" in text, text)
        check(f"{side.dir}," not in text, text)
        plugin = shutil.copy(os.path.join(BUILD, name), inner)
        check(name not in (text := told()), text)
        os.chown(plugin, 12345, 12345)
        check(f"looked for in {inner} (that one is not used: it belongs to the user 12345), " in (text := told()), text)


@case
def a_run_directory_that_somebody_else_has_is_another():
    """As root, in a /dev/shm of its own. The program says that it uses another directory. The command finds the program and
    tells the reason."""
    needs_root()
    program = "import socket, sys; s = socket.socket(); print('made', flush=True); sys.stdin.read()"
    script = f"""
mount -t tmpfs -o mode=1777 test /dev/shm && mount -t tmpfs -o mode=755 test /run || exit 77
mkdir -m 700 /dev/shm/bypass-0 && chown 12345 /dev/shm/bypass-0
mkfifo /run/go /run/made
BYPASS_LOG=info LD_PRELOAD={LIB} /usr/bin/python3 -c {shlex.quote(program)} < /run/go > /run/made 2> /run/said &
exec 3> /run/go
read line < /run/made
{BYPASS} why --json
exec 3>&-
wait $!
cat /run/said
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BYPASS_")}
    ran = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, timeout=60)
    if ran.returncode == 77:
        raise Skip("no file system can be mounted")
    check("run_dir_elsewhere" in ran.stdout, ran.stdout)
    check(ran.stdout.count("/dev/shm/bypass-0 belongs to the user 12345: /dev/shm/bypass-0-") >= 2, ran.stdout)


@case
def a_run_directory_that_cannot_be_written_is_named():
    """The directory is the user's own with mode 0700, on a read-only file system. With and without a port, and by the
    command."""
    needs_root()
    with Side("bypass") as side:
        folder = side.path("read-only")
        os.mkdir(folder, 0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", folder], check=True)
        try:
            script = "import socket; socket.socket(); print('ran')"
            for port, lines in ((f"vhost:{side.path('wire')}", 2), ("", 1)):
                child = side.start("server", "/usr/bin/python3", "-c", script, BYPASS_RUN_DIR=folder, BYPASS_PORT=port,
                                   BYPASS_ADDR=f"{side.address}/24" if port else "", BYPASS_LOCAL="")
                check(side.end(child) == 0, side.output(child))
                told = [line for line in side.output(child).splitlines() if line != "ran"]
                check(f"BYPASS_RUN_DIR={folder} (environment): " in told[0], told)
                check(len(told) >= lines and all(line.count("Read-only file system") == 1 for line in told), told)
            bare = {"LD_PRELOAD": "", "BYPASS_PORT": "", "BYPASS_ADDR": ""}
            side.run("server", BYPASS, "run", "--run-dir", folder, "--", "/usr/bin/python3", "-c", script, expect=125, **bare)
            side.run("server", BYPASS, "config", expect=1, BYPASS_RUN_DIR=folder, **bare)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@case
def a_wire_that_nobody_serves_is_named():
    """The other end may still come, so nothing is wrong yet. But the user may have named a wrong path."""
    with Side("bypass") as side:
        wire = side.path("typo")
        script = f"import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('{side.address}', 1)); input()"
        child = side.start("client", "/bin/sh", "-c", 'sleep 60 | exec /usr/bin/python3 -c "$0"', script, BYPASS_PORT=f"virtio:{wire}")
        side.wait_for(child, f"virtio:{wire}: nobody serves the path yet; waiting")
        side.until(lambda: re.search(f"link_down .*virtio:{re.escape(wire)}", side.why()), "why names the port")
        check(side.output(child).count("nobody serves") == 1, side.output(child))


@case
def a_familys_port_and_counters_are_one_processs():
    with Side("bypass") as side:
        port = free_port()
        server = side.start_python("server", "forked_echo.py", "prefork", side.address, port, until="ready")
        os.mkfifo(side.path("fifo"))
        client = side.start_python("client", "kept_connections.py", side.address, port, side.path("fifo"), until="kept")
        listed = lambda: json.loads(side.run("server", BYPASS, "stat", "--json", LD_PRELOAD=""))["processes"]
        family = lambda: [p for p in listed() if p["pid"] != client.pid]

        def told():
            owner = {p["port_owner"] for p in family()}
            return len(family()) > 1 and len(owner) == 1 and sum(1 for p in family() if p["counters"]) == 1

        side.until(told, "one process of the family shows its counters")
        owner = family()[0]["port_owner"]
        for process in family():
            mine = process["pid"] == owner
            check(process["ports"][0]["open"] == mine and (process["ports"][0]["rx_frames"] > 0) == mine, process)
            check(bool(process["counters"]) == mine, process)
        followers = [p["pid"] for p in family() if p["pid"] != owner]
        text = side.run("server", BYPASS, "stat", followers[0], LD_PRELOAD="").decode()
        check(f"port of pid {owner}" in text and f"of pid {owner} " in text, text)
        check(server.poll() is None, "the server has ended")


@case
def a_familys_port_goes_to_a_process_that_waits_for_it():
    """A master listens, forks and watches its workers. It may take a while until they accept."""
    script = ("import os, signal, socket, sys, time\n"
              "began = time.monotonic()\n"
              "listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))\n"
              "worker = os.fork()\n"
              "print('prompt' if time.monotonic() - began < 0.02 else 'late', flush=True)\n"
              "if worker == 0:\n"
              "    time.sleep(0.15)\n"  # what a worker does before: longer than a listener waits for its port
              "    if time.monotonic() - began > 0.25: print('late', flush=True)\n"
              "    print('accepts', flush=True)\n"
              "    while True: listener.accept()[0].close()\n"
              "print('ready', flush=True)\n"
              "signal.pause()\n")
    for _ in range(60):
        with Side("bypass") as side:
            port = free_port()
            # Without a keeper: to make it takes part of these 20 ms.
            master = side.start("server", "/usr/bin/python3", "-u", "-c", script, port, until="accepts", BYPASS_KEEPER="off")
            side.wait_port(port)
            listed = lambda: json.loads(side.run("server", BYPASS, "stat", "--json", LD_PRELOAD=""))["processes"]
            side.until(lambda: [p["port_owner"] for p in listed()] and all(p["port_owner"] for p in listed()), "somebody has the port")
            # A master that forks later than 30 ms after listen() already has the port. For a worker the port is kept free for 300 ms.
            if "late" in side.output(master):
                continue
            check(all(p["port_owner"] != master.pid for p in listed()), f"the master, {master.pid}, has the port: {listed()}")
            return
    raise Failure("on this machine no master forks within 20 ms of its listen()")


@case
def ss_hides_and_lists_time_wait_as_ss_does():
    script = ("import signal, socket, sys\n"
              "listener = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
              "print('ready', flush=True)\n"
              "s, _ = listener.accept()\n"
              "s.close()\n"  # it closes first, so TIME-WAIT is here
              "print('closed', flush=True)\n"
              "signal.pause()\n")
    shown = {}
    for name in ("kernel", "bypass"):
        with Side(name) as side:
            port = free_port()
            server = side.start("server", "/usr/bin/python3", "-u", "-c", script, side.address, port, until="ready")
            side.run("client", "/usr/bin/python3", "-c", "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1)",
                     side.address, port)
            side.wait_for(server, "closed")
            command = [BYPASS, "ss"] if name == "bypass" else ["/usr/bin/ss"]
            rows = lambda *options: side.run("server", *command, *options, f"sport = :{port}", LD_PRELOAD="").decode().splitlines()
            words = lambda *options: sorted(line.split()[0] for line in rows(*options))
            side.until(lambda: words("-Htan") == ["LISTEN", "TIME-WAIT"], "the connection is in TIME-WAIT")
            shown[name] = [words("-Htan"), words("-Htn"), rows("-Htln") != [], words("-Ht", "state", "time-wait"),
                           ["users:" in line for line in rows("-Hanp", "state", "time-wait")]]
    check(shown["kernel"] == shown["bypass"], shown)
    check(shown["bypass"][0] == ["LISTEN", "TIME-WAIT"] and shown["bypass"][1] == [], shown)


@case
def a_program_that_writes_over_its_title_keeps_its_name():
    """As setproctitle does: the title is written where argv[0] lies. Both the display and the rules use the name."""
    script = ("import ctypes, errno, socket, signal\n"
              "name = ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'program_invocation_short_name').value\n"
              "ctypes.memset(name, ord('x'), 7)\n"
              "s = socket.socket()\n"
              "print(s.connect_ex(('10.9.0.77', 9)) == errno.EACCES, flush=True)\n"
              "signal.pause()\n")
    with Side("bypass") as side:
        child = side.start("server", "/usr/bin/python3", "-c", script, until="\n", BYPASS_RULES="fail tcp connect * program=python3")
        check(side.output(child).splitlines()[-1] == "True", "the rule has not been found: " + side.output(child))
        check(side.stat(child)["command"] == "python3", side.stat(child)["command"])


run_named(CASES, "as promised")

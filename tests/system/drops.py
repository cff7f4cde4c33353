"""Servers of root on a port, whose workers give root's rights up. The workers then have memory of their own, which a driver
serves, and cannot reach root's memory.   drops.py NAME...   (no name: lists them)"""
import os
import re
import shutil
import signal
import time

from families import Load, Nginx
from harness import HERE, Skip, alive, check, cpu_use, free_port, run_named
from rights import arena_descriptors, arenas, cases, drivers, heir, processes_named, user_of

CASES = {}
case = cases(CASES)


def kill_all(side, pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    side.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "those that were killed have ended")


def driver(side, nginx, but=None):
    """Waits until a driver serves that is not `but`, and returns its pid."""
    def serving():
        return [pid for user, pid in drivers(side).items() if user != 0 and pid != but and arenas(pid)]
    # The kernel's list of children may miss one while another one ends (proc(5)).
    side.until(lambda: [user_of(worker) != 0 for worker in nginx.workers()] == [True, True], "both workers give root up")
    return side.until(serving, "a driver serves")[0]


def check_apart(side, nginx):
    """No process with root's rights maps memory that a worker can write to."""
    serves = driver(side, nginx)
    workers = nginx.workers()
    users = [*map(user_of, workers)]
    check(len(users) == 2 and user_of(nginx.master) == 0 and 0 not in users, f"workers are {dict(zip(workers, users))}: {nginx.log()}")
    shared = arenas(serves)
    check(len(shared) == 1, f"the driver has {shared}")
    for worker in workers:
        check(side.soon(lambda: arenas(worker) == shared, 5), f"a worker has {arenas(worker)}, the driver {shared}: {side.why()}")
        check(side.soon(lambda: arena_descriptors(worker) == [], 5), f"a worker has an arena's descriptors {arena_descriptors(worker)}")
    for pid in side.inhabitants():
        check(user_of(pid) != 0 or not arenas(pid) & shared, f"process {pid} of root's has the workers' memory")
    check(arenas(nginx.master) and not arenas(nginx.master) & shared, "the master's memory is the workers'")
    why = side.why()
    check("shares_with_less" not in why and "gave_up_rights" in why, why)


def serves_accelerated(side, nginx):
    before = side.count("tcp_passive_opens")
    for name in nginx.sums:
        nginx.curl(name)
    # Counters are published once a tick. How long a tick takes depends on the machine.
    check(side.soon(lambda: side.count("tcp_passive_opens") > before, 5), f"the kernel has served: {side.why()}")


@case("vhost", "virtio", "veth", "verbs", "shared_server")
def workers_leave_roots_memory(side):
    nginx = Nginx(side)
    check_apart(side, nginx)
    serves_accelerated(side, nginx)
    load = Load(nginx)
    check(load.stop()["lost"] == {}, "connections ended early")
    check(nginx.quit() == [], nginx.log())


@case("vhost", "veth")
def workers_of_a_reload_join(side):
    """New workers share the memory of the old ones and use the new listeners. The old workers' connections go on."""
    nginx = Nginx(side)
    first = arenas(driver(side, nginx))
    load = Load(nginx)
    for _ in range(2):
        before = nginx.workers()
        nginx.command("-s", "reload")
        nginx.wait_for_new_workers(before)
    lost = load.stop()["lost"]
    check(all(key.endswith("between answers") for key in lost), f"cut in the middle of an answer: {lost}")
    check_apart(side, nginx)
    check(arenas(driver(side, nginx)) == first, "the workers have another family's memory")
    serves_accelerated(side, nginx)
    check(nginx.quit() == [], nginx.log())


@case("vhost", "veth")
def all_workers_killed(side):
    """All workers are killed. The master makes new ones, which use the same driver."""
    nginx = Nginx(side)
    for _ in range(3):
        before = nginx.workers()
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        nginx.wait_for_new_workers(before)
        check_apart(side, nginx)
        serves_accelerated(side, nginx)
    nginx.quit()


@case("vhost", "veth")
def master_killed(side):
    """After the master's death the workers go on serving through the driver. With the last worker, all processes end."""
    nginx = Nginx(side)
    workers, port = nginx.workers(), driver(side, nginx)
    os.kill(nginx.master, signal.SIGKILL)
    side.until(lambda: not alive(nginx.master), "the master has ended")
    serves_accelerated(side, nginx)
    check(alive(port) and all(map(alive, workers)), "a worker or the driver has ended with the master")
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    side.until(lambda: not side.inhabitants(), "all processes have ended")
    check(not [name for name in os.listdir(side.dir) if name.startswith("wire")], "left behind")


@case("vhost", "veth")
def driver_killed(side):
    """The driver that serves is killed. Its keeper, which has root's rights, makes another one. Connections go on."""
    nginx = Nginx(side)
    killed = driver(side, nginx)
    load = Load(nginx)
    os.kill(killed, signal.SIGKILL)
    driver(side, nginx, but=killed)
    check(load.stop()["lost"] == {}, "connections ended with the driver")
    check_apart(side, nginx)
    serves_accelerated(side, nginx)
    check(nginx.quit() == [], nginx.log())


@case("vhost", "veth")
def both_drivers_killed(side):
    """Both processes of the driver are killed. The heir makes a new driver at once, which has an heir of its own. The same
    workers go on serving, and connections go on."""
    nginx = Nginx(side)
    workers = nginx.workers()
    for _ in range(2):
        serves, waits = driver(side, nginx), heir(side)
        load = Load(nginx)
        kill_all(side, drivers(side).values())
        driver(side, nginx, but=serves)
        heir(side, but=waits)
        check(load.stop()["lost"] == {}, "connections ended with the drivers")
        check(nginx.workers() == workers, "a worker has ended with the drivers")
        check_apart(side, nginx)
        serves_accelerated(side, nginx)
    check(nginx.quit() == [], nginx.log())


@case("veth")
def heir_killed(side):
    """The heir is killed. The keeper makes another heir. An heir that has outlived its keeper also ends with the family."""
    nginx = Nginx(side)
    serves, killed = driver(side, nginx), heir(side)
    os.kill(killed, signal.SIGKILL)
    heir(side, but=killed)
    check(driver(side, nginx) == serves, "there is another driver")
    kill_all(side, [drivers(side)[0]])
    serves_accelerated(side, nginx)
    check(driver(side, nginx) == serves and heir(side), "the one that serves, or the heir, has ended with the keeper")
    check(nginx.quit() == [], nginx.log())


@case("vhost", "veth")
def keeper_killed(side):
    """When the family ends, the heir ends, too, and does not open the port."""
    nginx = Nginx(side, environment={"BYPASS_LOG": "info", "BYPASS_LOG_FILE": side.path("said")})

    def drivers_made():
        with open(side.path("said"), errors="replace") as said:
            return said.read().count("the ports are driven")

    serves = driver(side, nginx)
    heir(side)
    kill_all(side, [drivers(side)[0]])
    check(driver(side, nginx) == serves, "there is another driver")
    made = drivers_made()
    check(nginx.quit() == [], nginx.log())
    check(made == drivers_made() == 1, f"{made} and then {drivers_made()} drivers have served")


@case("veth")
def all_that_drive_killed(side):
    """Root's family gets its port back when the last worker has ended, and lends it again."""
    nginx = Nginx(side)
    driver(side, nginx)
    before = nginx.workers()
    kill_all(side, [heir(side), *drivers(side).values()])
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    nginx.wait_for_new_workers(before)
    check_apart(side, nginx)
    serves_accelerated(side, nginx)
    nginx.quit()


@case("vhost", "veth")
def listener_waits_for_workers(side):
    """While no worker lives, new connections wait for the next worker, as long as the master has the listener open. When the
    master has closed the listener, they are refused, and the driver ends."""
    port = free_port()

    def tell(name):
        open(side.path(name), "w").close()

    def ask(count):
        return side.start_python("client", "asks_once.py", side.address, port, count, until="asked")

    master = side.start_python("server", "drops_one_by_one.py", side.address, port, side.dir, until="listening")
    tell("worker1")
    side.wait_for(master, "works")
    first = ask(1)
    check(side.end(first) == 0, side.output(first))
    side.wait_for(master, "ended 1")
    waiting, began = ask(2), time.monotonic()
    side.until(lambda: time.monotonic() - began > 4, "a time that is longer than any patience of the library's")
    check(drivers(side) and waiting.poll() is None, f"the driver has ended, or a connection: {side.output(waiting)}")
    for number in (2, 3):
        tell(f"worker{number}")
        side.wait_for(master, f"ended {number}")
    check(side.end(waiting) == 0, side.output(waiting))
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")
    tell("close")
    side.wait_for(master, "closed")
    side.until(lambda: not drivers(side), "the drivers end")
    check(alive(master.pid), "the master has ended")
    late = side.start_python("client", "asks_once.py", side.address, port, 1)
    check(side.end(late) != 0, side.output(late))
    check("ConnectionRefused" in side.output(late) or "timed out" in side.output(late), side.output(late))
    tell("end")


@case("vhost", "veth")
def listener_that_a_reload_closes(side):
    """After a reload the new workers and the driver go on. An address that no process has open any more refuses connections."""
    second = free_port()
    nginx = Nginx(side, options=f"; listen {side.address}:{second}")

    def curl_exit():
        told = side.run("client", "curl", "-sS", "-m", 30, "-o", side.path("got"), "-w", "%{exitcode}", f"http://{side.address}:{second}/small", expect=None)
        return int(told)

    serves = driver(side, nginx)
    check(curl_exit() == 0, "the second address does not serve")
    with open(side.path("nginx.conf")) as file:
        text = file.read()
    with open(side.path("nginx.conf"), "w") as file:
        file.write(text.replace(f"; listen {side.address}:{second}", ""))
    before = nginx.workers()
    nginx.command("-s", "reload")
    side.until(lambda: len(nginx.workers()) == 2 and not set(before) & set(nginx.workers()), "two new workers, no old one")
    side.until(lambda: curl_exit() == 7, "the address that the reload has taken away refuses")  # CURLE_COULDNT_CONNECT
    serves_accelerated(side, nginx)
    check(driver(side, nginx) == serves, "there is another driver")
    check(nginx.quit() == [], nginx.log())


@case("vhost", "veth")
def one_process_drops_before_the_port_is_open(side):
    """The port is opened with the rights that it needs, although the process has given them up before its first wait."""
    port = free_port()
    server = side.start_python("server", "drops_and_serves.py", port, until="listening")
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
    check(side.stat(server)["counters"]["tcp_passive_opens"] > 0, side.why(server))


def serves_after(side, how, *options):
    """The process makes its first socket after it has given rights up."""
    port = free_port()
    server = side.start_python("server", "drops_first.py", side.address, port, how, *options, until="listening")
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")
    return server


@case("veth", "shared_server")
def first_socket_by_rights_that_are_permitted(side):
    """seteuid() puts rights aside for a while. They still open the port."""
    serves_after(side, "os.seteuid(65534)")


@case("veth")
def first_socket_by_rights_that_are_not_effective(side):
    """Gives rights up as squid -N does: the saved user stays root."""
    serves_after(side, "os.setresuid(65534, 65534, 0); effective(1 << CAP_NET_BIND_SERVICE)")


def serves_beside_a_master(side, workers):
    """Root's master has no socket on the port. A driver opens the port when a worker needs it, and ends with the last worker."""
    port, before = free_port(), 0
    master = side.start_python("server", "drops_first.py", side.address, port, "os.setgid(65534); os.setuid(65534)", workers)
    for number in range(workers):
        started = side.until(lambda: re.findall(r"listening (\d+)", side.output(master))[number:], f"worker {number + 1} listens")
        side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
        check(side.soon(lambda: side.count("tcp_passive_opens") > before, 5), f"the kernel has served: {side.why()}")
        worker, by_user = int(started[0]), drivers(side)
        check(user_of(worker) == 65534 and user_of(master.pid) == 0, "no worker that has given root up")
        check(set(by_user) == {0, 65534} and arenas(worker) == arenas(by_user[65534]), f"the worker has {arenas(worker)}")
        check(not arenas(worker) & arenas(master.pid), "the worker has its master's memory")
        before = side.count("tcp_passive_opens")
        os.kill(worker, signal.SIGKILL)
    side.until(lambda: side.inhabitants() == [master.pid], "the drivers end")


@case("vhost", "veth", "shared_server")
def first_socket_of_a_worker(side):
    serves_beside_a_master(side, 1)


@case("veth", "shared_server")
def first_socket_of_the_next_worker(side):
    """The next worker uses the driver of the worker before it, or has a driver of its own."""
    serves_beside_a_master(side, 2)


@case("veth")
def program_executed_after_the_drop(side):
    """The worker executes another program. The driver that waits for the worker ends, and has not opened the port."""
    how = "os.setgid(65534); os.setuid(65534); print('drops', flush=True); os.execv('/bin/sleep', ['sleep', '60'])"
    master = side.start_python("server", "drops_first.py", side.address, free_port(), how, 1, until="drops")
    executed = side.until(lambda: processes_named(side, "sleep"), "the program runs")
    side.until(lambda: sorted(side.inhabitants()) == sorted([master.pid, *executed]), "the driver ends")
    check(side.count("rx_frames") == 0, "the port has been open")


def start_family(side, port, *children, until, listens=False, under=()):
    """Workers of a root master, under a tracer. peers/drops_in_turn.py says what they do."""
    os.chmod(side.dir, 0o755)
    script = os.path.join(HERE, "peers", "drops_in_turn.py")
    return side.start("server", *under, "/usr/bin/python3", "-u", script, side.address, port, side.dir, int(listens), *children, until=until)


@case("vhost", "veth")
def helper_of_another_user_comes_first(side):
    """A helper of another user has no socket on the port. It must not take the workers' place."""
    port = free_port()
    start_family(side, port, "listener.close(); drop(1)", "drop(65534)|serve(listener)", listens=True, until="ready 2")
    open(side.path("go"), "w").close()
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
    check(65534 in drivers(side), f"no driver serves the workers: {side.why()}")
    check("shares_with_less" not in side.why(), side.why())
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")


# A worker of drops_in_turn.py that waits until it has the ports: an open port has a thread. Two seconds at most, as another
# process may have them.
OPENS = "for _ in range(400): len(os.listdir('/proc/self/task')) > 2 or select.select([], [], [], 0.005)"


def start_after_a_killed_worker(side, port, *workers):
    """The first worker is killed after it has filled the shared memory and before it has made it ready. The ports were lent
    to it, and the family opens them again."""
    if shutil.which("strace") is None:
        raise Skip("no strace")
    kill = ("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=setreuid", "-e", "inject=setreuid:signal=KILL")
    return start_family(side, port, "os.setgid(65534); os.setreuid(65534, 65534)", *workers, under=kill, listens=True, until=f"ready {1 + len(workers)}")


def serves_after_a_killed_worker(side, until_then):
    """The second worker runs `until_then`, gives root up and serves."""
    port = free_port()
    start_after_a_killed_worker(side, port, f"{until_then}\ndrop(65534)|serve(listener)")
    open(side.path("go"), "w").close()
    served_apart(side, port)


def served_apart(side, port):
    """The workers serve on the port, and share no memory with root."""
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
    check("shares_with_less" not in (why := side.why()) and "arena_unavailable" not in why, why)
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")


@case("vhost", "veth")
def first_worker_killed_while_it_moves(side):
    """The next worker makes the shared memory again."""
    serves_after_a_killed_worker(side, "")


@case("vhost", "veth", "verbs")
def worker_with_the_port_drops(side):
    """The threads of its open port do not keep the worker in root's memory."""
    serves_after_a_killed_worker(side, OPENS)


def sleeps(pid):
    """Whether the process's threads together use less than a tenth of a second's processor time."""
    before = cpu_use(pid)[0]
    time.sleep(1)
    return cpu_use(pid)[0] - before < 100


@case("vhost", "veth", "verbs")
def worker_that_had_the_port_joins(side):
    """The ports are taken from a worker, which gives root up after that. The threads that its port has left behind keep their
    descriptors, and sleep."""
    port = free_port()
    joins = "drop(65534); print('joined', os.getpid(), flush=True); serve(listener)"
    master = start_after_a_killed_worker(side, port, f"{OPENS}|{joins}", "drop(65534)|serve(listener)")
    open(side.path("go2"), "w").close()
    joined = side.until(lambda: re.search(r"joined (\d+)", side.output(master)), "the worker has given root up")
    check(side.soon(lambda: sleeps(int(joined[1])), 20), "a thread of the worker does not sleep")
    open(side.path("go"), "w").close()
    served_apart(side, port)


def keepers(side):
    return processes_named(side, "bypass-driver")


@case("veth")
def each_worker_calls_its_own_driver(side):
    """Another worker's driver was made later and has ended with that worker. The first worker calls its own driver, and does
    not wait for the other."""
    port = free_port()
    start_family(side, port, "drop(65534)|serve()", "drop(65534)|os._exit(0)", until="ready 2")
    side.until(lambda: len(keepers(side)) == 2, "two drivers wait")
    open(side.path("go2"), "w").close()
    side.until(lambda: len(keepers(side)) == 1, "the one of the worker that has ended ends")
    open(side.path("go"), "w").close()
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")


@case("veth")
def no_memory_for_what_a_worker_shares(side):
    """The process has no descriptor of memory that others of its user may share, and no driver waits for it."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))"
    master = start_family(side, free_port(), f"{limit}; drop(65534); print('worker', os.getpid(), flush=True)", until="ready 1")
    worker = int(re.search(r"worker (\d+)", side.output(master))[1])
    check(user_of(worker) == 65534, "the worker has given no root up")
    check(not arenas(worker), f"there has been memory: {side.why()}")
    check(not arena_descriptors(worker), f"the worker has {arena_descriptors(worker)}")
    side.until(lambda: not drivers(side), "the driver ends")


@case("veth")
def address_of_a_listener_that_has_ended(side):
    """The address is free at once, although the driver had a reference to the socket."""
    how = "os.setgid(65534); os.setuid(65534)\nfor _ in range(20): socket.create_server((address, port)).close()"
    port = free_port()
    side.start_python("server", "drops_first.py", side.address, port, how, 1, until="listening")
    side.python("client", "asyncio_echo.py", "client", side.address, port, timeout=90)


if __name__ == "__main__":
    run_named(CASES, "shown")

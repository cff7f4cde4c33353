"""Processes that go on in a network namespace of their own: vsftpd in its default form, and small ones.
isolated.py NAME...   (no name: lists them)"""
import contextlib
import hashlib
import os

from harness import Skip, check, compare, free_port, kill_one, make_file, run_named
from sides import WIRES
from veth_wire import ip

CASES = {}
USER = 23456
# In a mount namespace of its own, where there are users to log in as, and a folder that the server locks itself in.
VSFTPD = """
set -e
mount --bind "$FOLDER/passwd" /etc/passwd
mount -t tmpfs none /run
mkdir -p /run/vsftpd/empty
exec /usr/sbin/vsftpd "$@"
"""
SETTINGS = """
listen=YES
background=NO
anonymous_enable=YES
anon_upload_enable=YES
anon_root={folder}/served
anon_umask=022
write_enable=YES
no_anon_password=YES
connect_from_port_20=NO
port_enable=YES
pasv_promiscuous=NO
xferlog_enable=NO
secure_chroot_dir=/run/vsftpd/empty
ftp_username=who
nopriv_user=ftpnobody
"""


def users():
    with open("/etc/passwd") as file:
        lines = [line for line in file if not line.startswith(("who:", "ftpnobody:"))]
    return "".join(lines) + f"who:x:{USER}:{USER}::/:/bin/sh\nftpnobody:x:{USER - 1}:{USER - 1}::/:/bin/false\n"


class Vsftpd:
    """With an anonymous user, who may put files into `in`."""

    def __init__(self, side, trust="credentials", **settings):
        if not os.path.exists("/usr/sbin/vsftpd"):
            raise Skip("no vsftpd")
        self.side, self.port = side, free_port()
        os.chmod(side.dir, 0o755)
        os.mkdir(side.path("served"), 0o755)
        os.mkdir(side.path("served/in"), 0o777)
        os.chmod(side.path("served/in"), 0o777)
        self.digest = make_file(side.path("served/bulk"), 20 << 20)
        with open(side.path("passwd"), "w") as file:
            file.write(users())
        words = SETTINGS.format(folder=side.dir) + "".join(f"{name}={value}\n" for name, value in settings.items())
        with open(side.path("vsftpd.conf"), "w") as file:
            file.write(words + f"listen_address={side.address}\nlisten_port={self.port}\n")
        self.child = side.start("server", "unshare", "--mount", "sh", "-c", VSFTPD, "sh", side.path("vsftpd.conf"),
                                FOLDER=side.dir, BYPASS_TRUST=trust)
        side.wait_port(self.port)

    def session(self, name, *steps):
        return self.side.python("client", "ftp_session.py", self.side.address, self.port, name, *steps).decode()


def inhabitants(side):
    """All of the server's namespace, where it has one."""
    if not hasattr(side, "namespaces"):
        return side.inhabitants()
    return [int(pid) for pid in ip("netns", "pids", side.namespaces["ours"]).split()]


def case(name, scenario, *wires):
    for wire in wires:
        CASES[f"{name}_{wire}"] = lambda wire=wire: shown(scenario, wire)


def shown(scenario, wire):
    if os.geteuid() != 0:
        raise Skip("only root has namespaces of its own")

    def with_namespaces(side):
        try:
            return scenario(side)
        finally:
            for pid in inhabitants(side):
                kill_one(pid)
    compare(with_namespaces, WIRES[wire][0], uses_fast_path=False)


DATA = ("list", "missing", "get", "put", "get", "list")


def of_ours(side):
    """The names of our own processes that serve this side."""
    names = []
    for pid in inhabitants(side):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as comm:  # it may have ended
            names.append(comm.read().strip())
    return [name for name in names if name in ("bypass-relay", "bypass-pump")]


def vsftpd(*steps, trust="credentials", **settings):
    def scenario(side):
        server = Vsftpd(side, trust, **settings)
        said = [server.session(way, way, *steps) for way in ("passive", "active")]
        side.until(lambda: not of_ours(side), "relays and pumps end with the sessions")
        for way in ("passive", "active") if "put" in steps else ():
            with open(side.path(f"served/in/{way}"), "rb") as file:
                said.append(hashlib.sha256(file.read()).hexdigest())
        return said
    return scenario


def goes(how):
    def scenario(side):
        port = free_port()
        server = side.start_python("server", "in_new_network.py", side.address, port, how, until="listening")
        told = side.python("client", "asks_slowly.py", side.address, port).decode()
        return told, side.end(server), side.output(server)
    return scenario


# A server whose data connections are opened by a process that has given rights up: in one family, and by a relay.
case("vsftpd", vsftpd(*DATA, trust="family"), "vhost", "veth")
case("vsftpd_in_one_network", vsftpd(*DATA, trust="family", isolate_network="NO"), "veth")
case("vsftpd_by_default", vsftpd(*DATA), "vhost", "veth")
case("vsftpd_from_port_20", vsftpd(*DATA, connect_from_port_20="YES", chown_uploads="YES"), "veth")
case("vsftpd_in_one_network_by_default", vsftpd(*DATA, isolate_network="NO"), "veth")
for how in ("clone", "unshare", "forks", "passed"):
    case(how, goes(how), "vhost", "veth")

if __name__ == "__main__":
    run_named(CASES, "as on the kernel")

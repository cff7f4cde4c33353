"""CPython's own tests of sockets, select, processes and signals, from Debian's package of the installed version."""
import os

from unit import Crashable
from world import bend

PYTHON = "/usr/bin/python3"
TESTS = "/usr/lib/python3.11/test"
QUICK = "test_select test_epoll test_asyncore test_telnetlib test_socketserver".split()
MORE = """test_socket test_poll test_selectors test_fork1 test_wait4 test_poplib test_asynchat test_asyncio.test_events
    test_asyncio.test_selector_events test_asyncio.test_streams test_asyncio.test_server test_asyncio.test_sock_lowlevel
    test_asyncio.test_sendfile test_asyncio.test_subprocess test_asyncio.test_unix_events test_ssl test_ftplib test_smtplib
    test_imaplib test_httplib test_httpservers test_urllib2_localnet test_xmlrpc test_signal test_threadsignals
    test_subprocess test_wait3 test_posix test_os test_fcntl test_pty""".split()


class Suite(Crashable):
    name = "cpython"
    packages = ("libpython3.11-testsuite", "python3")
    modules = QUICK + MORE
    quick = QUICK
    left_out = ("test.test_socket.ThreadedVSOCKSocketStreamTest.testStream",)  # waits for ever for a connection of a vsock's

    def prepare(self):
        return TESTS

    def environment(self, world):
        if not world.bent:
            return {}
        if not os.path.exists(world.path("python")):  # the address of all its servers
            os.mkdir(world.path("python"))
            world.copy(TESTS, "python/test")
            bend(world.path("python/test"), world.address, (".py",))
        return {"PYTHONPATH": world.path("python"), "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, world, results, module, *lists):
        return [PYTHON, os.path.join(self.here, "peers", "unittests.py"), results, f"test.{module}", *lists]

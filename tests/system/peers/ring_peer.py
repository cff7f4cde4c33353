"""One end of a connection in shared memory, written by hand: it says and writes what it is told, in any order. It speaks
as the guest of src/fastpath/shm/message.h. Told to an agent without the library."""
import mmap
import socket
import struct

OPEN, CUT, RESUME, STOP = 0x316e706f73737962, 0x3174756373737962, 0x316d757373737962, 0x3170747373737962
WELCOME, PROOF, SEGMENT, READY = 1, 2, 3, 4
FRONT = 4096
PRODUCED, CONSUMED = 512, 640  # of the guest's block


def message(kind):
    return struct.pack("<QHHHB17x", 0x316c737361707962, 1, 32, kind, 0)


class RingPeer:
    def __init__(self, tcp, name):
        self.tcp, self.written, self.read = tcp, 0, 0
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.connect("\0" + name)
        self.hear(WELCOME)
        socket.send_fds(self.channel, [message(PROOF)], [tcp.fileno()])
        for fd in self.hear(PROOF):
            socket.close(fd)
        memory, = self.hear(SEGMENT)
        self.memory = mmap.mmap(memory, 0)
        socket.close(memory)
        self.to_guest, self.to_host = struct.unpack_from("<QQ", self.memory, 16)
        self.channel.send(message(READY))

    def hear(self, kind):
        packet, fds, _, _ = socket.recv_fds(self.channel, 64, 1)
        if len(packet) != 32 or struct.unpack_from("<H", packet, 12)[0] != kind:
            raise RuntimeError(f"instead of {kind}: {packet}")
        return fds

    def say(self, kind, count):
        self.channel.send(struct.pack("<QQ", kind, count))

    def put(self, data):
        """Into the ring that the host reads."""
        at = FRONT + self.to_guest
        for i in range(0, len(data)):
            self.memory[at + (self.written + i) % self.to_host] = data[i]
        self.written += len(data)
        struct.pack_into("<Q", self.memory, PRODUCED, self.written)

    def reset(self):
        """As the kernel ends a connection whose process was killed with bytes unread; its channel, too."""
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tcp.close()
        self.channel.close()

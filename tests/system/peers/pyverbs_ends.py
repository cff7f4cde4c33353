"""Each operation of a software RDMA device once, by pyverbs, between two ends.
pyverbs_ends.py PORT          waits for the other end at this TCP port
pyverbs_ends.py PORT HOST     meets it there"""
import errno
import json
import socket
import sys

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wr import RecvWR, SGE, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

INDEX = 1  # of the GID
SIZE = 8192
ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC |
       e.IBV_ACCESS_MW_BIND)
CAP = QPCap(max_send_wr=32, max_recv_wr=32, max_send_sge=2, max_recv_sge=2, max_inline_data=64)


def check(holds, what):
    if not holds:
        raise SystemExit(f"{ROLE}: {what}")


def meet():
    if len(sys.argv) > 2:
        return socket.create_connection((sys.argv[2], int(sys.argv[1])), 20)
    with socket.create_server(("", int(sys.argv[1]))) as listener:
        print("waits", flush=True)
        return listener.accept()[0]


def exchange(**mine):
    """Says something to the other end, and returns what that said. Both are at the same place then."""
    PEER.sendall(json.dumps(mine).encode() + b"\n")
    return json.loads(LINES.readline())


def path(peer):
    return AHAttr(gr=GlobalRoute(dgid=GID(peer["gid"]), sgid_index=INDEX, hop_limit=64), is_global=1, port_num=1)


class End:
    """A queue pair with memory, connected to the same of the other end."""

    def __init__(self, kind=e.IBV_QPT_RC, srq=None, extended=0):
        self.kind = kind
        self.pd = PD(CONTEXT)
        self.channel = CompChannel(CONTEXT)
        self.cq = CQ(CONTEXT, 64, None, self.channel)
        self.mr = MR(self.pd, SIZE, ALL)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=16))) if srq else None
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ALL & ~(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
        attr.qkey = 0x1234
        if extended:
            self.qp = QPEx(CONTEXT, QPInitAttrEx(qp_type=kind, scq=self.cq, rcq=self.cq, cap=CAP, pd=self.pd, sq_sig_all=1,
                                                 comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                                 send_ops_flags=extended), attr)
        else:
            self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, srq=self.srq, cap=CAP, sq_sig_all=1), attr)
        self.peer = exchange(gid=CONTEXT.query_gid(1, INDEX).gid, qpn=self.qp.qp_num, rkey=self.mr.rkey, addr=self.mr.buf)
        if kind == e.IBV_QPT_UD:
            self.ah = AH(self.pd, attr=path(self.peer))
        else:
            self.qp.to_rts(self.attributes(attr))
        exchange()

    def attributes(self, attr):
        attr.ah_attr = path(self.peer)
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = self.peer["qpn"]
        attr.rq_psn = attr.sq_psn = 7
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        return attr

    def sge(self, offset=0, length=100):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, offset=SIZE // 2, length=1000, srq=None):
        (srq or self.srq or self.qp).post_recv(RecvWR(num_sge=1, sg=[self.sge(offset, length)]))

    def send(self, opcode, offset=0, length=100, imm=0, **named):
        wr = SendWR(opcode=opcode, num_sge=1, sg=[self.sge(offset, length)], imm_data=imm)
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
            wr.set_wr_rdma(named.get("rkey", self.peer["rkey"]), self.peer["addr"] + named.get("to", 0))
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(self.peer["rkey"], self.peer["addr"] + named.get("to", 0), named["add"], named.get("swap", 0))
        if self.kind == e.IBV_QPT_UD:
            wr.set_wr_ud(self.ah, self.peer["qpn"], 0x1234)
        self.qp.post_send(wr)

    def done(self, cq=None, status=e.IBV_WC_SUCCESS):
        count = 0
        while count == 0:
            count, completions = (cq or self.cq).poll(1)
        check(status in (None, completions[0].status), f"completion {completions[0]}")
        return completions[0]


def both_ways(end, opcode=e.IBV_WR_SEND, header=0):
    """A message each way, and its bytes."""
    end.mr.write(ROLE.ljust(100), 100)
    end.receive()
    exchange()
    end.send(opcode, imm=5)
    done = [end.done(), end.done()]
    received = next(wc for wc in done if wc.opcode & e.IBV_WC_RECV)
    check(received.byte_len == 100 + header, f"{received}")
    check(opcode == e.IBV_WR_SEND or received.imm_data == 5, f"{received}")
    check(end.mr.read(6, SIZE // 2 + header) == OTHER[:6].encode(), end.mr.read(6, SIZE // 2 + header))
    exchange()


def queries():
    device, port = CONTEXT.query_device(), CONTEXT.query_port(1)
    check(device.max_qp > 0 and port.state == e.IBV_PORT_ACTIVE, f"{device} {port}")
    check(CONTEXT.query_device_ex().orig_attr.max_mr == device.max_mr, "query_device_ex")
    clock = CONTEXT.query_rt_values_ex()
    check(sum(clock) > 0, "the clock")
    check(CONTEXT.query_pkey(1, 0) == 0xffff, "the partition key")
    check(len(CONTEXT.query_gid_table(8)) >= 2, "the GID table")
    try:
        MR(PD(CONTEXT), SIZE, e.IBV_ACCESS_ON_DEMAND)
        check(False, "on-demand paging was not refused")
    except PyverbsRDMAError as refusal:
        check(refusal.error_code == errno.EOPNOTSUPP, f"on-demand paging: {refusal}")


def messages():
    end = End()
    for opcode in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
        both_ways(end, opcode)
    both_ways(End(srq=True))
    both_ways(End(kind=e.IBV_QPT_UC))
    both_ways(End(kind=e.IBV_QPT_UD), header=40)


def remote_operations():
    end = End()
    end.mr.write(ROLE.ljust(100), 100)
    exchange()
    end.send(e.IBV_WR_RDMA_WRITE, to=1000)
    end.done()
    exchange()
    check(end.mr.read(6, 1000) == OTHER[:6].encode(), "what was written")
    end.send(e.IBV_WR_RDMA_READ, offset=2000)
    end.done()
    check(end.mr.read(6, 2000) == OTHER[:6].encode(), "what was read")
    end.receive()
    exchange()
    end.send(e.IBV_WR_RDMA_WRITE_WITH_IMM, to=3000, imm=9)
    check({end.done().opcode, end.done().opcode} == {e.IBV_WC_RDMA_WRITE, e.IBV_WC_RECV_RDMA_WITH_IMM}, "the opcodes")
    for opcode, add, swap in ((e.IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), (e.IBV_WR_ATOMIC_CMP_AND_SWP, 5, 6)):
        exchange()
        end.send(opcode, offset=4000, length=8, to=5000, add=add, swap=swap)
        end.done()
        exchange()
    check(int.from_bytes(end.mr.read(8, 5000), "little") == 6, "the word of atomic operations")
    exchange()
    end.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, e.IBV_ACCESS_LOCAL_WRITE)
    exchange()
    end.send(e.IBV_WR_RDMA_WRITE)
    check(end.done(status=None).status != e.IBV_WC_SUCCESS, "a write without the right to it")
    exchange()


def call_by_call():
    operations = (e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_READ |
                  e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | e.IBV_QP_EX_WITH_BIND_MW |
                  e.IBV_QP_EX_WITH_LOCAL_INV | e.IBV_QP_EX_WITH_SEND_WITH_INV | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
    end = End(extended=operations)
    mine = MW(end.pd, e.IBV_MW_TYPE_2)
    key = mine.rkey ^ 1
    qp = end.qp

    def post(build):
        qp.wr_start()
        qp.wr_flags = e.IBV_SEND_SIGNALED
        build()
        qp.wr_complete()
        return end.done()

    post(lambda: qp.wr_bind_mw(mine, key, MWBindInfo(end.mr, end.mr.buf, 1000, e.IBV_ACCESS_REMOTE_WRITE)))
    window = exchange(key=key)["key"]
    end.mr.write(ROLE.ljust(100), 100, 4000)

    def write():
        qp.wr_rdma_write(window, end.peer["addr"] + 500)
        qp.wr_set_sge(end.sge(4000))
    post(write)
    exchange()
    check(end.mr.read(6, 500) == OTHER[:6].encode(), "what was written by the window's key")

    def read():
        qp.wr_rdma_read(end.peer["rkey"], end.peer["addr"] + 500)
        qp.wr_set_sge(end.sge(6000))
    post(read)
    check(end.mr.read(6, 6000) == ROLE[:6].encode(), "what was read back")
    end.receive()
    exchange()

    def invalidate():
        qp.wr_send_inv(window)
        qp.wr_set_sge(end.sge(4000))
    qp.wr_start()
    qp.wr_flags = e.IBV_SEND_SIGNALED
    invalidate()
    qp.wr_complete()
    received = next(wc for wc in (end.done(), end.done()) if wc.opcode & e.IBV_WC_RECV)
    check(received.wc_flags & e.IBV_WC_WITH_INV, f"{received}")
    post(lambda: qp.wr_bind_mw(mine, key, MWBindInfo(end.mr, end.mr.buf, 1000, e.IBV_ACCESS_REMOTE_WRITE)))
    check(post(lambda: qp.wr_local_inv(key)).opcode == e.IBV_WC_LOCAL_INV, "the opcode")
    exchange()


def extended_completions():
    end = End()
    queue = CQEX(CONTEXT, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_QP_NUM |
                                       e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP))
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    end.qp = QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=queue, rcq=queue, cap=CAP, sq_sig_all=1), attr)
    end.peer["qpn"] = exchange(qpn=end.qp.qp_num)["qpn"]
    end.qp.to_rts(end.attributes(attr))
    end.receive()
    exchange()
    end.send(e.IBV_WR_SEND)
    for _ in range(2):
        while queue.start_poll(PollCqAttr()) != 0:
            pass
        check(queue.status == e.IBV_WC_SUCCESS and queue.read_timestamp() > 0 and queue.read_qp_num() == end.qp.qp_num, "a completion")
        queue.end_poll()
    exchange()


def events():
    end = End()
    end.cq.req_notify()
    end.receive()
    exchange()
    end.send(e.IBV_WR_SEND)
    end.channel.get_cq_event(end.cq)
    end.cq.ack_events(1)
    end.done(), end.done()
    exchange()


def xrc():
    end = End()
    domain = XRCD(CONTEXT, XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, 0o100, -1))
    attr = SrqInitAttrEx(max_wr=16)
    attr.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD | e.IBV_SRQ_INIT_ATTR_CQ
    attr.srq_type, attr.pd, attr.xrcd, attr.cq = e.IBV_SRQT_XRC, end.pd, domain, end.cq
    srq = SRQ(CONTEXT, attr)
    state = QPAttr(port_num=1)
    state.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    receiver = QP(CONTEXT, QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=domain), state)
    sender = QP(CONTEXT, QPInitAttrEx(qp_type=e.IBV_QPT_XRC_SEND, comp_mask=e.IBV_QP_INIT_ATTR_PD, pd=end.pd, scq=end.cq,
                                      cap=CAP, sq_sig_all=1), state)
    peer = exchange(sends=sender.qp_num, receives=receiver.qp_num, srq=srq.get_srq_num())
    for qp, number in ((receiver, peer["sends"]), (sender, peer["receives"])):
        end.peer["qpn"] = number
        qp.to_rts(end.attributes(state))
    end.mr.write(ROLE.ljust(100), 100)
    end.receive(srq=srq)
    exchange()
    wr = SendWR(num_sge=1, sg=[end.sge()])
    wr.set_qp_type_xrc(peer["srq"])
    sender.post_send(wr)
    end.done(), end.done()
    check(end.mr.read(6, SIZE // 2) == OTHER[:6].encode(), "what came by XRC")
    exchange()


ROLE, OTHER = ("client", "server") if len(sys.argv) > 2 else ("server", "client")
PEER = meet()
LINES = PEER.makefile()
CONTEXT = Context(name="soft0")
for operation in (queries, messages, remote_operations, call_by_call, extended_completions, events, xrc):
    operation()
    print(operation.__name__, flush=True)

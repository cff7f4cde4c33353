// Which attributes a queue pair's modification must and may name (InfiniBand specification, 10.3.1 and table 96), as
// the kernel checks them before it calls a device.
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

struct Masks {
  unsigned required = 0, optional = 0;
};

/// One column for each type of queue pair; `raw` is RAW_PACKET, `send` and `receive` are XRC's.
struct Transition {
  ibv_qp_state from, to;
  Masks rc, uc, ud, raw, send, receive;
};

constexpr unsigned kInitConnected = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr unsigned kInitDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr unsigned kRtrUc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr unsigned kRtrRc = kRtrUc | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr unsigned kRtrOptional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
constexpr unsigned kRtsRc =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr unsigned kLiveUc = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr unsigned kLiveRc = kLiveUc | IBV_QP_MIN_RNR_TIMER;
constexpr unsigned kLiveUd = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr unsigned kDrainedUc =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
constexpr unsigned kDrainedRc = kDrainedUc | IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

constexpr unsigned kDrainedSend = (kDrainedRc & ~unsigned{IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER});
constexpr unsigned kDrainedReceive =
    kDrainedRc & ~unsigned{IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC};

constexpr std::array<Transition, 11> kTransitions = {{
    {IBV_QPS_RESET, IBV_QPS_RESET, {}, {}, {}, {}, {}, {}},
    {IBV_QPS_RESET,
     IBV_QPS_INIT,
     {kInitConnected},
     {kInitConnected},
     {kInitDatagram},
     {IBV_QP_PORT},
     {kInitConnected},
     {kInitConnected}},
    {IBV_QPS_INIT,
     IBV_QPS_INIT,
     {0, kInitConnected},
     {0, kInitConnected},
     {0, kInitDatagram},
     {},
     {0, kInitConnected},
     {0, kInitConnected}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {kRtrRc, kRtrOptional},
     {kRtrUc, kRtrOptional},
     {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
     {},
     {kRtrUc, kRtrOptional},
     {kRtrRc, kRtrOptional}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {kRtsRc, kLiveRc},
     {IBV_QP_SQ_PSN, kLiveUc},
     {IBV_QP_SQ_PSN, kLiveUd},
     {0, IBV_QP_RATE_LIMIT},
     {kRtsRc, kLiveUc},
     {IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, kLiveRc}},
    {IBV_QPS_RTS,
     IBV_QPS_RTS,
     {0, kLiveRc},
     {0, kLiveUc},
     {0, kLiveUd},
     {0, IBV_QP_RATE_LIMIT},
     {0, kLiveUc},
     {0, kLiveRc}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0, kLiveRc}, {0, kLiveUc}, {0, kLiveUd}, {}, {0, kLiveUc}, {0, kLiveRc}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, kDrainedRc},
     {0, kDrainedUc},
     {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
     {},
     {0, kDrainedSend},
     {0, kDrainedReceive}},
    // A reliable connection has no SQE state. The transition exists, but may name no attribute.
    {IBV_QPS_SQE, IBV_QPS_RTS, {}, {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS}, {0, kLiveUd}, {}, {}, {}},
    {IBV_QPS_ERR, IBV_QPS_ERR, {}, {}, {}, {}, {}, {}},
}};

const Masks& masks_of(const Transition& t, ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_RC:
      return t.rc;
    case IBV_QPT_UC:
      return t.uc;
    case IBV_QPT_UD:
      return t.ud;
    case IBV_QPT_XRC_SEND:
      return t.send;
    case IBV_QPT_XRC_RECV:
      return t.receive;
    default:
      return t.raw;
  }
}

}  // namespace

unsigned meant_by(ibv_qp_type type, unsigned mask) {
  if (type == IBV_QPT_XRC_SEND) return mask & ~unsigned{IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER};
  if (type == IBV_QPT_XRC_RECV) return mask & ~unsigned{IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY};
  return mask;
}

int check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, unsigned mask) {
  // Into RESET from any state, and into error from any state but RESET: no other attribute may be named, not even the
  // current state.
  if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET))
    return (mask & ~unsigned{IBV_QP_STATE}) == 0 ? 0 : EINVAL;
  for (const Transition& t : kTransitions) {
    if (t.from != from || t.to != to) continue;
    const Masks& masks = masks_of(t, type);
    const bool enough = (mask & masks.required) == masks.required;
    const bool no_more = (mask & ~(masks.required | masks.optional | unsigned{IBV_QP_STATE})) == 0;
    return enough && no_more ? 0 : EINVAL;
  }
  return EINVAL;
}

}  // namespace bypass::rdma

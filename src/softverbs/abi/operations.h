// The functions that inline functions of verbs.h call through a context's tables; all of our contexts share one table.
#pragma once

#include <infiniband/verbs.h>

namespace bypass::softverbs {

// ibv_context_ops: the data path
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int request_notify_cq(ibv_cq* cq, int solicited_only);
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);
int dealloc_mw(ibv_mw* mw);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int post_srq_receive(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

// verbs_context
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr, std::size_t bytes);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    std::size_t bytes);
int query_rt_values(ibv_context* context, ibv_values_ex* values);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
int get_srq_num(ibv_srq* srq, std::uint32_t* number);
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr);
int close_xrcd(ibv_xrcd* xrcd);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);
ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr);
int destroy_flow(ibv_flow* flow);

}  // namespace bypass::softverbs

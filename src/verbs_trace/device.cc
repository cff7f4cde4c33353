// Verbs about devices, their ports and what they tell by themselves.
#include <infiniband/verbs.h>

#include "verbs_trace/call.h"
#include "verbs_trace/data_path.h"
#include "verbs_trace/ending.h"
#include "verbs_trace/next.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

using namespace bypass::verbs_trace;

#undef ibv_query_port
#define NEXT(verb) next<decltype(verb)>(#verb)

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  Call call("ibv_get_device_list");
  int found = 0;
  ibv_device** const list = call.make([&] { return NEXT(ibv_get_device_list)(&found); });
  if (count != nullptr) *count = found;
  call.returns_object(list, "devices");
  std::string all;
  for (int i = 0; list != nullptr && i < found && call.is_told(); i++)
    all += (all.empty() ? "" : " ") + std::string(list[i]->name);
  if (!all.empty()) call.tell("found", all);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  Call call("ibv_free_device_list");
  if (call.is_told()) call.arg("devices", name_of(list));
  const Ending<> ending(list);
  call.make([&] { NEXT(ibv_free_device_list)(list); });
}

ibv_context* ibv_open_device(ibv_device* device) {
  Call call("ibv_open_device");
  if (device != nullptr) call.arg("device", device->name);
  ibv_context* const context = call.make([&] { return NEXT(ibv_open_device)(device); });
  call.returns_object(context, "context");
  if (context != nullptr && call.is_told()) trace_data_path(*context);
  return context;
}

int ibv_close_device(ibv_context* context) {
  Call call("ibv_close_device");
  if (call.is_told()) call.arg("context", name_of(context));
  Ending<ibv_context_ops, verbs_context> ending(context);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_close_device)(context); }));
  call.returns(error);
  return error;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  Call call("ibv_query_device");
  if (call.is_told()) call.arg("context", name_of(context));
  const int error = call.make([&] { return NEXT(ibv_query_device)(context, attributes); });
  call.returns(error);
  if (error == 0 && call.is_told()) {
    call.tell("fw_ver", attributes->fw_ver);
    call.tell("max_qp", std::to_string(attributes->max_qp));
    call.tell("max_qp_wr", std::to_string(attributes->max_qp_wr));
  }
  return error;
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
  Call call("ibv_query_port");
  if (call.is_told()) call.arg("context", name_of(context)).arg("port", port);
  const int error = call.make([&] { return NEXT(ibv_query_port)(context, port, attributes); });
  call.returns(error);
  return error;
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  Call call("ibv_query_gid");
  if (call.is_told())
    call.arg("context", name_of(context)).arg("port", port).arg("index", static_cast<unsigned>(index));
  const int error = call.make([&] { return NEXT(ibv_query_gid)(context, port, index, gid); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("gid", gid_text(*gid));
  return error;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t flags, std::size_t size) {
  Call call("ibv_query_gid_ex");
  if (call.is_told()) call.arg("context", name_of(context)).arg("port", port).arg("index", index);
  const int error = call.make([&] { return NEXT(_ibv_query_gid_ex)(context, port, index, entry, flags, size); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("gid", gid_text(entry->gid));
  return error;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t room, std::uint32_t flags,
                             std::size_t size) {
  Call call("ibv_query_gid_table");
  if (call.is_told()) call.arg("context", name_of(context)).arg("max_entries", room);
  const ssize_t count = call.make([&] { return NEXT(_ibv_query_gid_table)(context, entries, room, flags, size); });
  call.returns_count(static_cast<int>(count));
  return count;
}

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  Call call("ibv_query_pkey");
  if (call.is_told())
    call.arg("context", name_of(context)).arg("port", port).arg("index", static_cast<unsigned>(index));
  const int error = call.make([&] { return NEXT(ibv_query_pkey)(context, port, index, pkey); });
  call.returns(error);
  return error;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Call call("ibv_get_async_event");
  if (call.is_told()) call.arg("context", name_of(context));
  const int error = call.make([&] { return NEXT(ibv_get_async_event)(context, event); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("event", event_word(event->event_type));
  return error;
}

void ibv_ack_async_event(ibv_async_event* event) {
  Call call("ibv_ack_async_event");
  if (call.is_told()) call.arg("event", event_word(event->event_type));
  call.make([&] { NEXT(ibv_ack_async_event)(event); });
}

int ibv_fork_init() {
  Call call("ibv_fork_init");
  const int error = call.make([&] { return NEXT(ibv_fork_init)(); });
  call.returns(error);
  return error;
}

}  // extern "C"

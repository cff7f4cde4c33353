// Verbs about protection domains, memory and address handles.
#include <infiniband/verbs.h>

#include "verbs_trace/call.h"
#include "verbs_trace/describe.h"
#include "verbs_trace/ending.h"
#include "verbs_trace/next.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

using namespace bypass::verbs_trace;

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#define NEXT(verb) next<decltype(verb)>(#verb)

namespace {

void describe_memory(Call& call, const ibv_pd* domain, std::size_t length, unsigned access) {
  if (!call.is_told()) return;
  call.arg("pd", name_of(domain)).arg("length", length).arg("access", access_words(access));
}

ibv_mr* registered(Call& call, ibv_mr* region) {
  call.returns_object(region, "mr");
  if (region == nullptr || !call.is_told()) return region;
  call.tell("lkey", hex_text(region->lkey));
  call.tell("rkey", hex_text(region->rkey));
  return region;
}

}  // namespace

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Call call("ibv_alloc_pd");
  if (call.is_told()) call.arg("context", name_of(context));
  ibv_pd* const domain = call.make([&] { return NEXT(ibv_alloc_pd)(context); });
  call.returns_object(domain, "pd");
  return domain;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  Call call("ibv_dealloc_pd");
  if (call.is_told()) call.arg("pd", name_of(domain));
  Ending<> ending(domain);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_dealloc_pd)(domain); }));
  call.returns(error);
  return error;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t length, int access) {
  Call call("ibv_reg_mr");
  describe_memory(call, domain, length, static_cast<unsigned>(access));
  return registered(call, call.make([&] { return NEXT(ibv_reg_mr)(domain, address, length, access); }));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova, int access) {
  Call call("ibv_reg_mr_iova");
  describe_memory(call.hex("iova", iova), domain, length, static_cast<unsigned>(access));
  return registered(call, call.make([&] { return NEXT(ibv_reg_mr_iova)(domain, address, length, iova, access); }));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  Call call("ibv_reg_mr_iova2");
  describe_memory(call.hex("iova", iova), domain, length, access);
  return registered(call, call.make([&] { return NEXT(ibv_reg_mr_iova2)(domain, address, length, iova, access); }));
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                          int access) {
  Call call("ibv_reg_dmabuf_mr");
  describe_memory(call.hex("iova", iova), domain, length, static_cast<unsigned>(access));
  return registered(call, call.make([&] { return NEXT(ibv_reg_dmabuf_mr)(domain, offset, length, iova, fd, access); }));
}

int ibv_rereg_mr(ibv_mr* region, int flags, ibv_pd* domain, void* address, std::size_t length, int access) {
  Call call("ibv_rereg_mr");
  if (call.is_told()) call.arg("mr", name_of(region)).hex("flags", static_cast<unsigned>(flags));
  describe_memory(call, domain, length, static_cast<unsigned>(access));
  const int error = call.make([&] { return NEXT(ibv_rereg_mr)(region, flags, domain, address, length, access); });
  call.returns(error);
  return error;
}

int ibv_dereg_mr(ibv_mr* region) {
  Call call("ibv_dereg_mr");
  if (call.is_told()) call.arg("mr", name_of(region));
  Ending<> ending(region);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_dereg_mr)(region); }));
  call.returns(error);
  return error;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  Call call("ibv_create_ah");
  if (call.is_told()) describe(call.arg("pd", name_of(domain)), *attributes);
  ibv_ah* const handle = call.make([&] { return NEXT(ibv_create_ah)(domain, attributes); });
  call.returns_object(handle, "ah");
  return handle;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* domain, ibv_wc* completion, ibv_grh* header, std::uint8_t port) {
  Call call("ibv_create_ah_from_wc");
  if (call.is_told()) call.arg("pd", name_of(domain)).arg("port", port);
  ibv_ah* const handle = call.make([&] { return NEXT(ibv_create_ah_from_wc)(domain, completion, header, port); });
  call.returns_object(handle, "ah");
  return handle;
}

int ibv_destroy_ah(ibv_ah* handle) {
  Call call("ibv_destroy_ah");
  if (call.is_told()) call.arg("ah", name_of(handle));
  Ending<> ending(handle);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_destroy_ah)(handle); }));
  call.returns(error);
  return error;
}

}  // extern "C"

// The link of an end: set up, used, made to fail, and set up again.
#include <algorithm>
#include <array>

#include "two_processes.h"

namespace bypass::two_processes {

void End::ask() {
  if (!options_.client() || over()) return;
  setup_ = device_->request(next_id_++, memory_, options_.peer, now());
  if (setup_ == nullptr) die("no more links");
}

void End::hear_of_link() {
  line_->hear([&](const Record& record, std::span<const std::byte> body) {
    moved_++;
    if (record.type == RecordType::kLinkReq)
      asked_.assign(body.begin(), body.end());
    else if (setup_ != nullptr)
      setup_->on_record(record.type, body);
  });
  if (asked_.empty() || setup_ != nullptr || closing_) return;
  setup_ = device_->answer(asked_, Reason::kNone, memory_, options_.peer, now());
  asked_.clear();
}

void End::on_link_up() {
  up_ = true;
  end_ = LinkEnd(setup_->window());
  per_link_.push_back(0);
}

void End::look_after_link() {
  device_->attend();
  if (closing_ && device_->gone(memory_)) closing_ = false;
  hear_of_link();
  if (setup_ == nullptr && !closing_) ask();
  if (setup_ == nullptr) return;
  if (!up_) setup_->poll(now());
  std::array<std::byte, kMaxLinkBody> body;
  for (Record record; setup_->next_record(record, body); moved_++)
    line_->say(record, std::span(body).first(record.length));
  if (up_) return poll_link();
  if (setup_->state() == SetupState::kUp) on_link_up();
  if (setup_->state() == SetupState::kFailed) failures_++, close_link();
}

void End::poll_link() {
  Table table{*this};
  const auto before = end_.state();
  end_.poll(setup_->link(), table);
  end_.flush(setup_->link(), table);
  if (end_.state() != before) moved_++;
  kill_link();
  if (end_.state() == fastpath::LinkState::kDrained && has_left_link()) on_link_over();
}

// The ends take turns, each when a good part of the link's bytes has come over lanes.
void End::kill_link() {
  const bool mine = (deaths_ % 2 == 0) == options_.client();
  if (!mine || deaths_ >= options_.count || end_.state() != fastpath::LinkState::kUp) return;
  if (per_link_.back() >= options_.part()) setup_->link().fail();  // as many as one connection has, of four
}

// The old link's memory is needed until its rings are read.
bool End::has_left_link() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& each) {
    return !each->listed || (each->lane.released() && (each->lane.detached() || each->end_sent));
  });
}

void End::on_link_over() {
  deaths_++;
  for (auto& each : connections_) each->over_tcp = 0;
  close_link();
}

void End::close_link() {
  device_->close(setup_);
  setup_ = nullptr;
  up_ = false;
  closing_ = true;
  for (auto& each : connections_) each->listed = false, each->lane.queued = 0;
}

}  // namespace bypass::two_processes

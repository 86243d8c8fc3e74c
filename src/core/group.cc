// UlyssesGroup: life and small change. The exchange itself is in exchange.cc.
#include "fast_ulysses/group.h"

#include "core/group_impl.h"
#include "core/protocol.h"
#include "core/result_pool.h"
#include "core/vote.h"
#include "engine/host.h"
#include "fast_ulysses/log.h"
#include "fast_ulysses/version.h"
#include "transport/shm.h"

namespace fast_ulysses {
namespace {

// What every rank must have said alike for the group to work.
std::string agreement_text(const GroupOptions& options) {
  return "fast_ulysses " FAST_ULYSSES_VERSION ", name '" + options.name + "', transport '" + options.transport +
         "', heap_bytes " + std::to_string(options.heap_bytes) + ", handshakes_before " +
         std::to_string(options.handshakes_before) + ", control page of " + std::to_string(sizeof(ControlPage)) +
         " bytes";
}

void check_options(const GroupOptions& options, int size) {
  if (options.transport != "auto" && options.transport != "shm") {
    throw InvalidArgument("transport '" + options.transport + "' is not known; 'auto' and 'shm' are");
  }
  if (size < 1 || size > kMaxRanks) {
    throw InvalidArgument("a group of " + std::to_string(size) + " ranks; 1 to " + std::to_string(kMaxRanks) +
                          " are supported");
  }
  if (!(options.timeout_s > 0)) {
    throw InvalidArgument("timeout_s is " + std::to_string(options.timeout_s) + "; it must be positive");
  }
  if (options.heap_bytes < 0) {
    throw InvalidArgument("heap_bytes is " + std::to_string(options.heap_bytes) + "; it must not be negative");
  }
}

// Returns the planted fault. What is wrong on one rank alone is told to all: none of them waits for it.
TestFault agree(const GroupOptions& options, Bootstrap& bootstrap) {
  TestFault fault = TestFault::kNone;
  std::string mine;
  try {
    check_options(options, bootstrap.size());
    fault = test_fault_from_environment();
    mine = "+" + agreement_text(options);
  } catch (const InvalidArgument& error) {
    mine = std::string("-") + error.what();
  }
  const std::vector<std::string> all = bootstrap.allgather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].substr(0, 1) != "+") {
      throw InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(all.size()) + ": " +
                            (all[rank].empty() ? "no answer" : all[rank].substr(1)));
    }
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw InvalidArgument("the ranks make different groups: rank 0 says " + all[0].substr(1) + "; rank " +
                            std::to_string(rank) + " says " + all[rank].substr(1));
    }
  }
  return fault;
}

}  // namespace

UlyssesGroup::Impl::Impl(GroupOptions options, Bootstrap& bootstrap)
    : options_(std::move(options)),
      rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      handshakes_(options_.handshakes_before),
      queue_(options_.poll_interrupt) {
  fault_ = agree(options_, bootstrap);
  transport_ = make_shm_transport();
  transport_name_ = transport_->name();
  board_ = std::make_unique<ControlBoard>(options_.name, bootstrap);
  who_ = board_->who();
  waiter_ = std::make_unique<Waiter>(*board_, options_.timeout_s, options_.poll_interrupt);
  meeting_ = std::make_unique<Meeting>(*board_, *waiter_);
  engine_ = make_host_engine(*board_, *waiter_, fault_);
  if (size_ > 1 && options_.heap_bytes > 0) {
    arena_.resize(options_.heap_bytes, *transport_, bootstrap);
    counters_.capacity_bytes = arena_.capacity_bytes();
  }
}

// R6: nothing here meets a peer, throws, or frees what a peer may use.
UlyssesGroup::Impl::~Impl() {
  if (destroyed_.load() || !board_) return;
  log(LogLevel::kWarning,
      board_->who() + ": destroy() was not called; its shared memory is kept until the process ends");
  leak();
}

void UlyssesGroup::Impl::leak() noexcept {
  {
    const std::lock_guard<std::mutex> lock(board_mutex_);
    board_->leak();
    static_cast<void>(board_.release());  // the waiter and the meeting refer to it
  }
  arena_.leak();
  for (UserWindow& window : windows_) static_cast<void>(window.heap.release());
}

void UlyssesGroup::Impl::remember_fault(const std::string& text) noexcept {
  const std::lock_guard<std::mutex> lock(fault_mutex_);
  if (!fault_text_) fault_text_ = text;
}

void UlyssesGroup::Impl::enter(const std::string& what) {
  if (destroyed_.load())
    throw StateError(who_ + ": " + what + ": the group was destroyed; make a new one with init_group");
  check();
}

void UlyssesGroup::Impl::check() {
  const std::lock_guard<std::mutex> board_lock(board_mutex_);
  if (!board_) return;  // destroyed
  {
    const std::lock_guard<std::mutex> lock(fault_mutex_);
    if (fault_text_) {
      throw StateError(who_ + ": the group is out of use since an earlier fault; destroy() it and make a new one. " +
                       "The fault: " + *fault_text_);
    }
  }
  try {
    board_->throw_if_error("");
  } catch (const Error& error) {  // found by a peer since the last call: told once as what it is
    remember_fault(error.what());
    throw;
  }
}

void UlyssesGroup::Impl::abort(const std::string& reason) {
  // Not mutex_: another thread may be waiting inside a call, and this is what ends it.
  const std::lock_guard<std::mutex> board_lock(board_mutex_);
  if (!board_) return;  // destroyed
  const std::string text = who_ + ": abort() was called: " + reason;
  board_->publish_error(ErrorCode::kPeerError, text);
  remember_fault(text);
}

void UlyssesGroup::Impl::destroy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (destroyed_.load()) return;
  bool faulted = false;
  {
    const std::lock_guard<std::mutex> fault_lock(fault_mutex_);
    faulted = fault_text_.has_value();
  }
  std::string error_text;
  ErrorCode code = ErrorCode::kNone;
  if (!faulted && size_ > 1) {
    try {
      // A handshake of its own kind: a rank that made one call fewer than the others is found here at the latest.
      board_->record(protocol::kSignatureDestroy, "destroy");
      board_->mine().current.store(protocol::kSignatureDestroy);
      handshake(protocol::kSignatureDestroy, "destroy");
      engine_->synchronize();
      meeting_->set_purpose("destroy");
      meeting_->barrier();  // every rank is past its last access of anyone's windows
    } catch (const Error& error) {
      faulted = true;
      error_text = error.what();
      code = error.code();
    } catch (...) {  // an interrupt
      board_->publish_error(ErrorCode::kPeerError, board_->who() + ": interrupted in destroy");
      board_->mine().state.store(static_cast<std::uint32_t>(RankState::kDestroyed));
      destroyed_.store(true);
      leak();
      throw;
    }
  }
  board_->mine().current.store(0);
  board_->mine().state.store(static_cast<std::uint32_t>(RankState::kDestroyed));
  destroyed_.store(true);
  if (faulted) {
    leak();  // a peer may be anywhere: it keeps what it maps, and so do we
  } else {
    arena_ = Arena();
    counters_.capacity_bytes = 0;
    windows_.clear();  // memory that the caller still holds stays: each window's owner is shared
    engine_.reset();
    meeting_.reset();
    waiter_.reset();
    const std::lock_guard<std::mutex> board_lock(board_mutex_);
    board_.reset();
  }
  queue_.stop();
  if (code != ErrorCode::kNone) throw_error(code, error_text);
}

std::map<std::string, std::int64_t> UlyssesGroup::Impl::counters() const {
  return {{"calls", counters_.calls},
          {"native_bytes", counters_.native_bytes},
          {"own_bytes", counters_.own_bytes},
          {"handshakes", counters_.handshakes},
          {"inserted_handshakes", counters_.inserted_handshakes},
          {"growths", counters_.growths},
          {"capacity_bytes", counters_.capacity_bytes}};
}

UlyssesGroup::UlyssesGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UlyssesGroup::~UlyssesGroup() {
  if (impl_->idle()) return;
  // A thread is inside an exchange of this group, perhaps waiting for a peer: nothing here may wait for it, or go.
  log(LogLevel::kWarning, "group '" + name() + "': dropped with exchanges under way and without destroy()");
  static_cast<void>(impl_.release());
}

std::unique_ptr<UlyssesGroup> UlyssesGroup::create(GroupOptions options, Bootstrap& bootstrap) {
  return std::unique_ptr<UlyssesGroup>(new UlyssesGroup(std::make_unique<Impl>(std::move(options), bootstrap)));
}

int UlyssesGroup::rank() const noexcept { return impl_->rank(); }
int UlyssesGroup::size() const noexcept { return impl_->size(); }
const std::string& UlyssesGroup::name() const noexcept { return impl_->options().name; }
const std::string& UlyssesGroup::transport() const noexcept { return impl_->transport_name(); }

std::shared_ptr<const ExchangePlan> UlyssesGroup::plan(const std::string& op,
                                                       const std::vector<TensorRequest>& requests) const {
  return ExchangePlan::make(op, requests, rank(), size());
}

void UlyssesGroup::exchange(const ExchangePlan& plan, const std::vector<const void*>& src,
                            const std::vector<void*>& dst, const std::vector<int>& windows) {
  impl_->drain();
  impl_->exchange(plan, src, dst, windows);
}

std::shared_ptr<PendingExchange> UlyssesGroup::exchange_async(std::shared_ptr<const ExchangePlan> plan,
                                                              std::vector<const void*> src, std::vector<void*> dst) {
  return impl_->exchange_async(std::move(plan), std::move(src), std::move(dst));
}

void UlyssesGroup::a2a(const TensorRequest& request, const void* src, void* dst) {
  exchange(*plan("a2a", {request}), {src}, {dst});
}

void UlyssesGroup::a2a_qkv(const std::array<TensorRequest, 3>& requests, const std::array<const void*, 3>& src,
                           const std::array<void*, 3>& dst) {
  exchange(*plan("a2a_qkv", {requests.begin(), requests.end()}), std::vector<const void*>(src.begin(), src.end()),
           std::vector<void*>(dst.begin(), dst.end()));
}

void UlyssesGroup::all_to_all_single(const void* src, void* dst, std::int64_t bytes) {
  if (bytes < 0 || bytes % size() != 0) {
    throw InvalidArgument("all_to_all_single: " + std::to_string(bytes) + " bytes are not " + std::to_string(size()) +
                          " equal parts");
  }
  TensorRequest request;
  request.sizes = {size(), bytes / size(), 1};
  request.strides = {bytes / size(), 1, 1};
  request.elem_bytes = 1;
  request.dtype = "bytes";
  request.scatter_dim = 0;
  request.gather_dim = 1;
  exchange(*plan("all_to_all_single", {request}), {src}, {dst});
}

int UlyssesGroup::empty_window(std::int64_t bytes) {
  impl_->drain();
  return impl_->empty_window(bytes);
}
std::shared_ptr<void> UlyssesGroup::window_memory(int window) const { return impl_->window(window).memory; }
std::int64_t UlyssesGroup::window_bytes(int window) const { return impl_->window(window).heap->bytes(); }
void UlyssesGroup::check() { impl_->check(); }
void UlyssesGroup::reserve(std::int64_t bytes) {
  if (bytes < 0) throw InvalidArgument("reserve: " + std::to_string(bytes) + " bytes; must not be negative");
  if (bytes == 0) return check();  // nothing to reserve
  impl_->drain();
  impl_->resize("reserve", bytes);
}
void UlyssesGroup::trim() {
  impl_->drain();
  ResultPool::instance().trim();
  impl_->resize("trim", 0);
}
void UlyssesGroup::abort(const std::string& reason) { impl_->abort(reason); }
void UlyssesGroup::destroy() {
  impl_->drain();
  impl_->destroy();
}
std::map<std::string, std::int64_t> UlyssesGroup::counters() const { return impl_->counters(); }

}  // namespace fast_ulysses

#include "support/groups.h"

#include <dirent.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <memory>

// Groups that are not destroyed keep their shared memory on purpose, and nothing points to it any more.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:fast_ulysses::SegmentSet::make\nleak:fast_ulysses::UlyssesGroup::Impl::Impl\n"
         "leak:fast_ulysses::ControlBoard::ControlBoard\nleak:ShmTransport::make_heap\n";
}

namespace fast_ulysses::tests {
namespace {

// A fence around tests that ask for too much on purpose: should a check be lost, the kernel refuses to reserve a
// segment of more than this (EFBIG), where it would otherwise fill the machine's memory first.
constexpr rlim_t kMostSegmentBytes = rlim_t{1} << 30;
[[maybe_unused]] const bool fenced = [] {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{kMostSegmentBytes, kMostSegmentBytes};
  return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}();

}  // namespace

GroupOptions test_options(const std::string& name, double timeout_s) {
  GroupOptions options;
  options.name = name;
  options.timeout_s = timeout_s;
  return options;
}

std::unique_ptr<UlyssesGroup> make_group(RankEnv& env, const std::string& name) {
  return UlyssesGroup::create(test_options(name), env.world());
}

std::int64_t exchange_coded(UlyssesGroup& group, const std::string& op, const std::vector<TensorCase>& tensors,
                            std::uint64_t seed) {
  std::vector<CodedTensor> coded;
  std::vector<TensorRequest> requests;
  for (const TensorCase& tensor : tensors) {
    coded.emplace_back(tensor, group.rank(), seed * 16 + coded.size());
    requests.push_back(coded.back().request());
  }
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (CodedTensor& tensor : coded) {
    src.push_back(tensor.src());
    dst.push_back(tensor.dst());
  }
  group.exchange(*group.plan(op, requests), src, dst);
  std::int64_t wrong = 0;
  for (CodedTensor& tensor : coded) tensor.overwrite_input();
  for (const CodedTensor& tensor : coded) wrong += tensor.mismatches();
  return wrong;
}

Moved moved_by(const std::vector<TensorCase>& tensors, int rank, int size) {
  Moved moved;
  for (const TensorCase& tensor : tensors) {
    Sizes block = input_sizes(tensor, rank);
    for (int peer = 0; peer < size; ++peer) {
      block[static_cast<std::size_t>(tensor.scatter_dim)] = tensor.scatter_splits[static_cast<std::size_t>(peer)];
      (peer == rank ? moved.own_bytes : moved.wire_bytes) += numel(block) * tensor.elem_bytes;
    }
  }
  return moved;
}

Holdings holdings() {
  Holdings found;
  if (DIR* const folder = opendir("/proc/self/fd")) {
    while (readdir(folder) != nullptr) ++found.descriptors;
    closedir(folder);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:fast_ulysses") != std::string::npos) ++found.mappings;
  }
  return found;
}

}  // namespace fast_ulysses::tests

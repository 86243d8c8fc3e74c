#include "transport/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace fast_ulysses {
namespace {

std::optional<std::int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

std::optional<std::int64_t> mem_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

// Page cache counts as used by a control group, and most of it can be dropped: count inactive file pages as free.
std::int64_t reclaimable_bytes(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string key;
  std::int64_t value = 0;
  while (file >> key >> value) {
    if (key == "inactive_file" || key == "total_inactive_file") return value;
  }
  return 0;
}

void limit_by(std::int64_t& free_bytes, const std::string& folder, const char* limit_name, const char* usage_name) {
  const auto limit = read_number(folder + "/" + limit_name);
  const auto usage = read_number(folder + "/" + usage_name);
  if (limit && usage) {
    free_bytes = std::min(free_bytes, std::max<std::int64_t>(0, *limit - *usage + reclaimable_bytes(folder)));
  }
}

}  // namespace

std::int64_t available_host_memory_bytes() {
  std::int64_t free_bytes = mem_available_bytes().value_or(std::numeric_limits<std::int64_t>::max());
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "0::/path" (v2) or "5:memory:/path" (v1)
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (;;) {  // a limit of any ancestor counts
      limit_by(free_bytes, root + path, v2 ? "memory.max" : "memory.limit_in_bytes",
               v2 ? "memory.current" : "memory.usage_in_bytes");
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  return free_bytes;
}

}  // namespace fast_ulysses

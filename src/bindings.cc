// The Python module `fast_ulysses._C`: addresses and integers only, so that one binary serves every torch. The GIL is
// released around whatever can block.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/result_pool.h"
#include "dlpack.h"
#include "fast_ulysses/errors.h"
#include "fast_ulysses/group.h"
#include "fast_ulysses/log.h"
#include "fast_ulysses/partition.h"
#include "fast_ulysses/plan.h"
#include "fast_ulysses/version.h"

namespace py = pybind11;

namespace fast_ulysses {
namespace {

using Ints = std::vector<std::int64_t>;
// sizes, strides, elem_bytes, dtype, scatter_dim, gather_dim, scatter_splits, gather_splits, out_strides,
// scatter_starts
using TensorTuple = std::tuple<Ints, Ints, int, std::string, int, int, std::optional<Ints>, std::optional<Ints>,
                               std::optional<Ints>, std::optional<Ints>>;

std::vector<TensorRequest> requests_of(const std::vector<TensorTuple>& tensors) {
  std::vector<TensorRequest> requests;
  for (const TensorTuple& tensor : tensors) {
    const auto& [sizes, strides, elem_bytes, dtype, scatter_dim, gather_dim, scatter, gather, out, starts] = tensor;
    requests.push_back({sizes, strides, elem_bytes, dtype, scatter_dim, gather_dim, scatter, gather, out, starts});
  }
  return requests;
}

// The group's own process group, reached through Python, for the time of the constructor.
class PythonBootstrap final : public Bootstrap {
 public:
  PythonBootstrap(int rank, int size, py::function allgather)
      : rank_(rank), size_(size), allgather_(std::move(allgather)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& bytes) override {
    const py::gil_scoped_acquire gil;
    std::vector<std::string> all;
    for (const py::handle item : allgather_(py::bytes(bytes)))
      all.push_back(py::cast<std::string>(py::cast<py::bytes>(item)));
    if (static_cast<int>(all.size()) != size_) {
      throw StateError("allgather returned " + std::to_string(all.size()) + " items for " + std::to_string(size_) +
                       " ranks");
    }
    return all;
  }

 private:
  int rank_, size_;
  py::function allgather_;
};

// Lets a waiting thread see Ctrl-C. Python delivers signals on the main thread alone. Other threads must not ask for
// the GIL here: once the interpreter is leaving, it ends a thread that does, which C++ frames do not survive.
void poll_python_signals() {
  if (syscall(SYS_gettid) != getpid()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::unique_ptr<UlyssesGroup> make_group(int rank, int size, const std::string& name, py::function allgather,
                                         const std::string& transport, double timeout_s, std::int64_t heap_bytes) {
  PythonBootstrap bootstrap(rank, size, std::move(allgather));
  GroupOptions options;
  options.name = name;
  options.transport = transport;
  options.timeout_s = timeout_s;
  options.heap_bytes = heap_bytes;
  options.poll_interrupt = poll_python_signals;
  const py::gil_scoped_release release;
  return UlyssesGroup::create(std::move(options), bootstrap);
}

std::vector<const void*> sources_of(const std::vector<std::uintptr_t>& addresses) {
  std::vector<const void*> sources;
  for (const std::uintptr_t address : addresses) sources.push_back(reinterpret_cast<const void*>(address));
  return sources;
}

std::vector<void*> destinations_of(const std::vector<std::uintptr_t>& addresses) {
  std::vector<void*> destinations;
  for (const std::uintptr_t address : addresses) destinations.push_back(reinterpret_cast<void*>(address));
  return destinations;
}

void exchange(UlyssesGroup& group, const ExchangePlan& plan, const std::vector<std::uintptr_t>& src,
              const std::vector<std::uintptr_t>& dst, const std::vector<int>& windows) {
  const std::vector<const void*> sources = sources_of(src);
  const std::vector<void*> destinations = destinations_of(dst);
  const py::gil_scoped_release release;
  group.exchange(plan, sources, destinations, windows);
}

std::shared_ptr<PendingExchange> exchange_async(UlyssesGroup& group, std::shared_ptr<ExchangePlan> plan,
                                                const std::vector<std::uintptr_t>& src,
                                                const std::vector<std::uintptr_t>& dst) {
  return group.exchange_async(std::move(plan), sources_of(src), destinations_of(dst));
}

// `bytes` of host memory as a DLPack capsule. The capsule, and the tensor made of it, own a share of the memory.
py::capsule bytes_dlpack(std::shared_ptr<void> memory, std::int64_t bytes) {
  struct Owner {
    dlpack::ManagedTensor managed;
    std::int64_t shape;
    std::shared_ptr<void> memory;
  };
  auto* const owner = new Owner{{}, bytes, std::move(memory)};
  owner->managed.tensor = {
      owner->memory.get(), {dlpack::kDeviceCpu, 0}, 1, {dlpack::kCodeUnsigned, 8, 1}, &owner->shape, nullptr, 0};
  owner->managed.context = owner;
  owner->managed.deleter = [](dlpack::ManagedTensor* self) { delete static_cast<Owner*>(self->context); };
  return py::capsule(&owner->managed, "dltensor", [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // taken over: renamed by whoever consumed it
    auto* const managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  });
}

// Python objects that live as long as the process: the interpreter may be gone when static destructors run.
struct Exceptions {
  py::object base;
  std::vector<py::object> by_code;
};
Exceptions& exceptions() {
  static Exceptions* const instance = new Exceptions;
  return *instance;
}

void define_exceptions(py::module_& module) {
  Exceptions& all = exceptions();
  const auto make = [&](const char* name, const py::tuple& bases) {
    const std::string full = std::string("fast_ulysses.") + name;
    auto made = py::reinterpret_steal<py::object>(PyErr_NewException(full.c_str(), bases.ptr(), nullptr));
    if (!made) throw py::error_already_set();
    module.attr(name) = made;
    return made;
  };
  all.base = make("FastUlyssesError", py::make_tuple(py::handle(PyExc_Exception)));
  all.by_code.resize(1);
#define X(name, twin) all.by_code.push_back(make(#name, py::make_tuple(all.base, py::handle(PyExc_##twin))));
  FU_FOR_EACH_ERROR(X)
#undef X
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetString(exceptions().by_code[static_cast<std::size_t>(error.code())].ptr(), error.what());
    }
  });
}

void set_python_log_sink(const py::object& sink) {
  if (sink.is_none()) return set_log_sink({});
  auto* const kept = new py::object(sink);  // never freed: see Exceptions
  set_log_sink([kept](LogLevel level, const std::string& text) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    (*kept)(static_cast<int>(level), text);
  });
}

void define_plan(py::module_& module) {
  py::class_<ExchangePlan, std::shared_ptr<ExchangePlan>>(module, "Plan")
      .def_property_readonly("output_sizes",
                             [](const ExchangePlan& plan) {
                               std::vector<Ints> all;
                               for (const ExchangePlan::Part& part : plan.parts()) all.push_back(part.output_sizes);
                               return all;
                             })
      .def_property_readonly("text", &ExchangePlan::text)
      .def_property_readonly("wire_bytes", &ExchangePlan::wire_bytes)
      .def_property_readonly("own_bytes", &ExchangePlan::own_bytes)
      .def_property_readonly("window_bytes", &ExchangePlan::window_bytes);
  module.def(
      "plan",
      [](int rank, int size, const std::string& op, const std::vector<TensorTuple>& tensors) {
        return std::const_pointer_cast<ExchangePlan>(ExchangePlan::make(op, requests_of(tensors), rank, size));
      },
      py::arg("rank"), py::arg("size"), py::arg("op"), py::arg("tensors"));
}

void define_group(py::module_& module) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<PendingExchange, std::shared_ptr<PendingExchange>>(module, "PendingExchange")
      .def("done", &PendingExchange::done)
      .def(
          "wait", [](PendingExchange& pending) { pending.wait(poll_python_signals); }, released);
  py::class_<UlyssesGroup>(module, "Group")
      .def(py::init(&make_group), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("allgather"),
           py::arg("transport") = "auto", py::arg("timeout_s") = 600.0, py::arg("heap_bytes") = 0)
      .def_property_readonly("rank", &UlyssesGroup::rank)
      .def_property_readonly("size", &UlyssesGroup::size)
      .def_property_readonly("name", &UlyssesGroup::name)
      .def_property_readonly("transport", &UlyssesGroup::transport)
      .def(
          "plan",
          [](const UlyssesGroup& group, const std::string& op, const std::vector<TensorTuple>& tensors) {
            return std::const_pointer_cast<ExchangePlan>(group.plan(op, requests_of(tensors)));
          },
          py::arg("op"), py::arg("tensors"))
      .def("exchange", &exchange, py::arg("plan"), py::arg("src"), py::arg("dst"),
           py::arg("windows") = std::vector<int>())
      .def("exchange_async", &exchange_async, py::arg("plan"), py::arg("src"), py::arg("dst"))
      .def("empty_window", &UlyssesGroup::empty_window, py::arg("bytes"), released)
      .def(
          "window_dlpack",
          [](const UlyssesGroup& group, int window) {
            return bytes_dlpack(group.window_memory(window), group.window_bytes(window));
          },
          py::arg("window"))
      .def("check", &UlyssesGroup::check, released)
      .def("stats", &UlyssesGroup::counters, released)
      .def("reserve", &UlyssesGroup::reserve, py::arg("bytes"), released)
      .def("trim", &UlyssesGroup::trim, released)
      .def("abort", &UlyssesGroup::abort, py::arg("reason"), released)
      .def("destroy", &UlyssesGroup::destroy, released);
}

}  // namespace
}  // namespace fast_ulysses

PYBIND11_MODULE(_C, module) {
  namespace fu = fast_ulysses;
  module.attr("__version__") = FAST_ULYSSES_VERSION;
  fu::define_exceptions(module);
  fu::define_plan(module);
  fu::define_group(module);
  module.def("balanced_split", &fu::balanced_split, py::arg("total"), py::arg("parts"));
  module.def(
      "take_result", [](std::int64_t bytes) { return fu::bytes_dlpack(fu::ResultPool::instance().take(bytes), bytes); },
      py::arg("bytes"));
  module.def("set_log_sink", &fu::set_python_log_sink, py::arg("sink"));
}

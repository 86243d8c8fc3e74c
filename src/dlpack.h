// The C structures of the DLPack exchange protocol, version 0 (https://dmlc.github.io/dlpack), as much as is needed to
// hand out a one-dimensional array of bytes. The layout is fixed by that specification.
#pragma once

#include <cstdint>

namespace fast_ulysses::dlpack {

inline constexpr std::int32_t kDeviceCpu = 1;
inline constexpr std::uint8_t kCodeUnsigned = 1;

struct Device {
  std::int32_t type, id;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

}  // namespace fast_ulysses::dlpack

// Everything is hidden unless marked: the extension module exports its init function alone, a C++ user links the
// static library.
#pragma once

#define FU_API __attribute__((visibility("default")))

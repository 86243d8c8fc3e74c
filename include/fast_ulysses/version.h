#pragma once

#define FAST_ULYSSES_VERSION "0.1.0"

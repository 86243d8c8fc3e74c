# How our own code is compiled. Nothing here leaks into what links us.

set(FAST_ULYSSES_SANITIZE_FLAGS "")
if(FAST_ULYSSES_SANITIZE STREQUAL "undefined")
  set(FAST_ULYSSES_SANITIZE_FLAGS -fsanitize=undefined -fno-sanitize-recover=all)
elseif(FAST_ULYSSES_SANITIZE MATCHES "^(thread|address)$")
  set(FAST_ULYSSES_SANITIZE_FLAGS -fsanitize=${FAST_ULYSSES_SANITIZE})
elseif(FAST_ULYSSES_SANITIZE)
  message(FATAL_ERROR "FAST_ULYSSES_SANITIZE is thread, address, undefined or empty, not `${FAST_ULYSSES_SANITIZE}`")
endif()

# The settings of every target of this project: C++17, no extensions, hidden, position independent, warnings, sanitizers.
function(fast_ulysses_own_code target)
  target_compile_features(${target} PUBLIC cxx_std_17)
  set_target_properties(${target} PROPERTIES
                        CXX_EXTENSIONS OFF
                        CXX_VISIBILITY_PRESET hidden
                        VISIBILITY_INLINES_HIDDEN ON
                        POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${FAST_ULYSSES_WERROR}>:-Werror>)
  if(FAST_ULYSSES_SANITIZE_FLAGS)
    target_compile_options(${target} PRIVATE ${FAST_ULYSSES_SANITIZE_FLAGS} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE ${FAST_ULYSSES_SANITIZE_FLAGS})
  endif()
endfunction()

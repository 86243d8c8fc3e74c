# fast_ulysses._C: the binding. It links no libpython (the interpreter that loads it brings the symbols) and exports
# its init function alone.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

# pybind11 comes as a Python package, both in a virtual environment and in pip's isolated build; it says where it is.
if(NOT pybind11_DIR)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_QUIET RESULT_VARIABLE pybind11_missing)
  if(pybind11_missing)
    unset(pybind11_DIR)
  endif()
endif()
find_package(pybind11 QUIET CONFIG)
if(NOT pybind11_FOUND)
  message(FATAL_ERROR "pybind11 not found by ${Python_EXECUTABLE}: `${Python_EXECUTABLE} -m pip install pybind11`, "
                      "or set pybind11_DIR")
endif()

# NO_EXTRAS: link-time optimisation gains nothing here, since the core is a library of its own, and triples the build.
pybind11_add_module(_C MODULE NO_EXTRAS "${PROJECT_SOURCE_DIR}/src/bindings.cc")
target_include_directories(_C PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(_C PRIVATE fast_ulysses_core)
fast_ulysses_own_code(_C)

set(module_exports "${PROJECT_SOURCE_DIR}/cmake/module_exports.map")
target_link_options(_C PRIVATE "LINKER:--version-script=${module_exports}")
set_target_properties(_C PROPERTIES LINK_DEPENDS "${module_exports}")

if(FAST_ULYSSES_INPLACE)
  set_target_properties(_C PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/python/fast_ulysses")
endif()
install(TARGETS _C LIBRARY DESTINATION fast_ulysses COMPONENT python)

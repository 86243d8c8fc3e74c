# mp/NAME_test.cc -> mp_NAME, and one ctest entry for each rank count.

find_package(MPI REQUIRED COMPONENTS CXX)

# The launcher's options and environment are those of its family. All ranks are on this machine, there may be more ranks
# than cores, and CI may be root.
execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE launcher_version ERROR_QUIET)
set(launcher_flags "")
set(launcher_environment "GTEST_COLOR=no")
if(launcher_version MATCHES "Open MPI|OpenRTE|PRRTE")
  # Its own deadline comes before ctest's, so that it can end its ranks and say so.
  math(EXPR launcher_timeout_s "${FAST_ULYSSES_MP_TIMEOUT_S} - 10")
  set(launcher_flags --oversubscribe --allow-run-as-root --bind-to none --timeout ${launcher_timeout_s})
  list(APPEND launcher_environment
      "OMPI_MCA_rmaps_base_oversubscribe=1"
      "OMPI_MCA_mpi_yield_when_idle=1"
      "OMPI_MCA_pml=ob1" # no search for network hardware
      "OMPI_MCA_btl_base_warn_component_unused=0"
      "OMPI_MCA_btl_vader_single_copy_mechanism=none" # containers forbid it, and it complains
      "OMPI_MCA_orte_base_help_aggregate=0")
  if(launcher_version MATCHES " 4\\.")
    list(APPEND launcher_environment "OMPI_MCA_btl=self,vader")
  endif()
endif()

file(GLOB mp_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/mp/*.cc")
if(mp_sources)
  add_library(cpp_test_mpi_main STATIC mpi_main.cc)
  # The C++ bindings of MPI are long gone from the standard; their headers only bring warnings.
  target_compile_definitions(cpp_test_mpi_main PUBLIC OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
  target_link_libraries(cpp_test_mpi_main PUBLIC ${support_library} MPI::MPI_CXX)
  fast_ulysses_own_code(cpp_test_mpi_main)
endif()

foreach(source IN LISTS mp_sources)
  add_test_executable(target mp "${source}")
  target_link_libraries(${target} PRIVATE cpp_test_mpi_main)
  foreach(ranks IN LISTS FAST_ULYSSES_MP_RANKS)
    set(test "${target}_n${ranks}")
    add_test(NAME ${test}
             COMMAND "${MPIEXEC_EXECUTABLE}" ${launcher_flags} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}>)
    set_tests_properties(${test} PROPERTIES
                         LABELS mp
                         TIMEOUT ${FAST_ULYSSES_MP_TIMEOUT_S}
                         PROCESSORS ${ranks}
                         ENVIRONMENT "${launcher_environment};${sanitizer_environment}")
  endforeach()
endforeach()

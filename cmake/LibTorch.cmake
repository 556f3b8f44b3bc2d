# LibTorch from the PyPI wheel (docs/developing.md). The CPU build uses IMPORTED targets, because the wheel's own
# find_package(Torch) insists on a CUDA toolkit at configure time; the CUDA build uses find_package(Torch).
# LOCKSTEP_LIBTORCH: the folder that holds torch/ and nvidia/ (a `pip install --target` folder or a site-packages).

if(NOT LOCKSTEP_LIBTORCH)
  if(DEFINED ENV{LOCKSTEP_CACHE})
    set(lockstep_cache $ENV{LOCKSTEP_CACHE})
  else()
    set(lockstep_cache $ENV{HOME}/.cache/lockstep)
  endif()
  if(LOCKSTEP_CUDA)
    file(GLOB LOCKSTEP_LIBTORCH ${lockstep_cache}/py-test/lib/python3*/site-packages)
  else()
    set(LOCKSTEP_LIBTORCH ${lockstep_cache}/libtorch-2.11.0)
  endif()
endif()
if(NOT EXISTS ${LOCKSTEP_LIBTORCH}/torch/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found in ${LOCKSTEP_LIBTORCH}: run `scripts/setup` (with CUDA `scripts/setup test`), or set LOCKSTEP_LIBTORCH, "
                      "or configure with -DLOCKSTEP_TORCH=OFF to build the agent alone")
endif()
set(torch_root ${LOCKSTEP_LIBTORCH}/torch)

add_library(lockstep_torch INTERFACE)
# The wheel's libraries export parts of a libstdc++ of their own (std::filesystem; its remove_all in libtorch.so jumps to
# null). A program takes a symbol from the first library that has it: the machine's libstdc++ comes before them.
target_link_options(lockstep_torch INTERFACE "SHELL:LINKER:--push-state,--no-as-needed -lstdc++ LINKER:--pop-state")
if(LOCKSTEP_CUDA)
  include(LibTorchCuda)
else()
  foreach(lib c10 torch_cpu)
    add_library(lockstep_import_${lib} SHARED IMPORTED)
    set_target_properties(lockstep_import_${lib} PROPERTIES IMPORTED_LOCATION ${torch_root}/lib/lib${lib}.so)
    target_link_libraries(lockstep_torch INTERFACE lockstep_import_${lib})
  endforeach()
  target_include_directories(lockstep_torch SYSTEM INTERFACE
    ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
  # libtorch_cpu.so needs libcudart and libcupti at load time, and nothing else of CUDA.
  set(cuda_lib ${LOCKSTEP_LIBTORCH}/nvidia/cu13/lib)
  target_link_options(lockstep_torch INTERFACE -Wl,-rpath-link,${cuda_lib})
  list(APPEND CMAKE_BUILD_RPATH ${torch_root}/lib ${cuda_lib})  # installed programs look in ../lib
endif()
target_compile_definitions(lockstep_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# at::parallel_for is defined in ATen's headers, and runs on one thread in code that is compiled without OpenMP. When the
# program runs, libgomp is that of the wheel, so that there is one pool of threads.
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(lockstep_torch INTERFACE OpenMP::OpenMP_CXX)

# One precompiled header for all targets with the same flags: parsing it costs 10-15 s on one core.
add_library(lockstep_torch_pch_rooms STATIC ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(lockstep_torch_pch_rooms PUBLIC lockstep_options lockstep_torch)
set_target_properties(lockstep_torch_pch_rooms PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_precompile_headers(lockstep_torch_pch_rooms PRIVATE ${CMAKE_SOURCE_DIR}/cmake/torch_pch.h)

function(lockstep_torch_pch target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # PIE and PIC differ in their macros; programs take the rooms' flags so that one header serves all.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch_rooms)
endfunction()

if(LOCKSTEP_TESTS)
  add_library(lockstep_torch_pch_tests STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
  target_link_libraries(lockstep_torch_pch_tests PUBLIC lockstep_options lockstep_test_options lockstep_torch)
  target_precompile_headers(lockstep_torch_pch_tests PRIVATE ${CMAKE_SOURCE_DIR}/cmake/torch_test_pch.h)
endif()

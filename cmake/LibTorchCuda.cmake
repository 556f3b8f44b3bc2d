# LibTorch with CUDA: find_package(Torch) on a PyTorch that has all its CUDA libraries, and nvcc.
#
# nvcc is taken from CUDACXX or CMAKE_CUDA_COMPILER, else from the PyPI wheels beside that PyTorch (scripts/setup test
# puts them there, with the links that CMake needs), else from the machine's own toolkit.
# A machine's own PyTorch: -DLOCKSTEP_LIBTORCH=<its site-packages>.

set(LOCKSTEP_CUDA_ARCHITECTURES "7.5;8.0;8.6;8.9;9.0+PTX" CACHE STRING
  "Compute capabilities to compile for, in PyTorch's notation")
set(TORCH_CUDA_ARCH_LIST ${LOCKSTEP_CUDA_ARCHITECTURES})

set(cuda_wheels ${LOCKSTEP_LIBTORCH}/nvidia/cu13)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS ${cuda_wheels}/bin/nvcc)
  if(NOT EXISTS ${cuda_wheels}/lib64)
    message(FATAL_ERROR "nvcc of ${cuda_wheels} lacks the links that CMake needs: run `scripts/setup test`")
  endif()
  set(CMAKE_CUDA_COMPILER ${cuda_wheels}/bin/nvcc)
  set(CUDAToolkit_ROOT ${cuda_wheels})
  set(CUDA_TOOLKIT_ROOT_DIR ${cuda_wheels})
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# PyTorch's files name the architectures themselves; CMake must not add its own.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
find_package(Torch REQUIRED PATHS ${torch_root}/share/cmake NO_DEFAULT_PATH)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

target_link_libraries(lockstep_torch INTERFACE ${TORCH_LIBRARIES})
target_include_directories(lockstep_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(lockstep_torch INTERFACE LOCKSTEP_CUDA=1)
target_compile_options(lockstep_torch INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
if(EXISTS ${LOCKSTEP_LIBTORCH}/nvidia/nccl/include/nccl.h)
  target_include_directories(lockstep_torch SYSTEM INTERFACE ${LOCKSTEP_LIBTORCH}/nvidia/nccl/include)
endif()
# runner/dist/nccl_backend.cc calls NCCL itself, too.
find_library(LOCKSTEP_NCCL NAMES nccl libnccl.so.2 HINTS ${LOCKSTEP_LIBTORCH}/nvidia/nccl/lib REQUIRED)
target_link_libraries(lockstep_torch INTERFACE ${LOCKSTEP_NCCL})
list(APPEND CMAKE_BUILD_RPATH ${torch_root}/lib ${cuda_wheels}/lib)  # installed programs look in ../lib

# Everything of ours that needs CUDA's headers, compiled and not linked: CI builds this so that it cannot rot.
function(lockstep_add_cuda_objects)
  set(objects)
  string(REPLACE ";" "," architectures "${LOCKSTEP_CUDA_ARCHITECTURES}")
  foreach(room loop worker)
    target_compile_definitions(lockstep_${room} PRIVATE LOCKSTEP_CUDA_ARCHITECTURE_LIST="${architectures}")
  endforeach()
  foreach(room dist kernels loop worker)
    if(TARGET lockstep_${room})
      list(APPEND objects $<TARGET_OBJECTS:lockstep_${room}>)
    endif()
  endforeach()
  add_custom_target(cuda_objects DEPENDS ${objects})
endfunction()

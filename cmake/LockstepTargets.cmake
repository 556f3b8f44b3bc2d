# How a room, a program and a test are declared. One room = one folder = one static library `lockstep_<room>`.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()

add_library(lockstep_options INTERFACE)
target_include_directories(lockstep_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(lockstep_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Werror>)
# g++ 12 sees in `"literal" + std::string` what is not there: an overlap, an access out of bounds (GCC bugs 105651, 105329);
# more of it with a precompiled header. ASan looks for the real ones. Designated initialisers leave out what has its default
# on purpose; g++ warns of that, clang does not.
target_compile_options(lockstep_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-missing-field-initializers>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  if(LOCKSTEP_NO_SANITIZE)
    target_compile_options(lockstep_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${LOCKSTEP_NO_SANITIZE}>)
  endif()
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  if(LOCKSTEP_SANITIZE MATCHES thread)
    # ThreadSanitizer does not know fences; Asio's are not needed by a loop that one thread runs.
    target_compile_definitions(lockstep_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

# CMAKE_UNITY_BUILD compiles up to 24 sources of a target as one: what they include is parsed, instantiated and compiled
# once, which is most of the time of a small source. A type of an unnamed namespace is then not the main file's, and no
# less ours.
if(CMAKE_UNITY_BUILD)
  target_compile_options(lockstep_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

# lockstep_alone(a.cc …): sources that have names in unnamed namespaces which another source of their target has, too.
function(lockstep_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# For all rooms without torch: parsing it costs 2-3 s on one core.
add_library(lockstep_pch_rooms STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(lockstep_pch_rooms PUBLIC lockstep_options nlohmann_json::nlohmann_json)
set_target_properties(lockstep_pch_rooms PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_precompile_headers(lockstep_pch_rooms PRIVATE ${CMAKE_SOURCE_DIR}/cmake/room_pch.h)

# lockstep_room(NAME SOURCES a.cc … [DEPS lockstep_base …] [TORCH])
# TORCH: the room needs LibTorch; it is left out of a build with LOCKSTEP_TORCH=OFF.
function(lockstep_room name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(arg_TORCH AND NOT LOCKSTEP_TORCH)
    return()
  endif()
  set(target lockstep_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    target_link_libraries(${target} PUBLIC lockstep_options ${arg_DEPS})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    if(arg_TORCH)
      target_link_libraries(${target} PUBLIC lockstep_torch)
      lockstep_torch_pch(${target})
    else()
      target_precompile_headers(${target} REUSE_FROM lockstep_pch_rooms)
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE lockstep_options ${arg_DEPS})
    if(arg_TORCH)
      target_link_libraries(${target} INTERFACE lockstep_torch)
    endif()
  endif()
endfunction()

# malloc of the worker and the operator (docs/decisions.md says why). A sanitizer has its own.
add_library(lockstep_allocator INTERFACE)
if(NOT LOCKSTEP_SANITIZE)
  target_link_options(lockstep_allocator INTERFACE LINKER:--no-as-needed)  # nothing calls it by name
  target_link_libraries(lockstep_allocator INTERFACE PkgConfig::tcmalloc)
endif()

# lockstep_program(NAME SOURCES … DEPS … [TORCH])
function(lockstep_program name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(arg_TORCH AND NOT LOCKSTEP_TORCH)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_options ${arg_DEPS})
  if(arg_TORCH)
    lockstep_torch_pch(${name})
  endif()
endfunction()

# How tests are compiled: the rooms that they test are optimised and checked, they themselves need not be. With a
# precompiled header it halves their time. LOCKSTEP_TESTS_WITHOUT_UBSAN leaves more out than their own code: an inline
# function or template that both a test and a room have not inlined is linked once, from the test. make asan-torch has all
# of the rooms with torch.
if(LOCKSTEP_TESTS)
  add_library(lockstep_test_options INTERFACE)
  target_link_libraries(lockstep_test_options INTERFACE lockstep_options GTest::gtest GTest::gmock)
  target_compile_options(lockstep_test_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  if(LOCKSTEP_SANITIZE MATCHES undefined AND LOCKSTEP_TESTS_WITHOUT_UBSAN)
    target_compile_options(lockstep_test_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=undefined>)
  endif()
  add_library(lockstep_pch_tests STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
  # In the order of the tests: the last flag wins.
  target_link_libraries(lockstep_pch_tests PUBLIC lockstep_options lockstep_test_options nlohmann_json::nlohmann_json)
  target_precompile_headers(lockstep_pch_tests PRIVATE ${CMAKE_SOURCE_DIR}/cmake/test_pch.h)
  add_custom_target(torch_tests)  # what make asan-torch builds
endif()

# lockstep_test(NAME SOURCES … DEPS … [TORCH] [THREADS] [OPTIMIZED] [LABELS …]): a GoogleTest program, one
# ctest entry. THREADS: some of its tests start threads. ThreadSanitizer has nothing to find in the others.
# OPTIMIZED: its own code works for seconds.
function(lockstep_test name)
  cmake_parse_arguments(arg "TORCH;THREADS;OPTIMIZED" "" "SOURCES;DEPS;LABELS" ${ARGN})
  if(arg_TORCH AND NOT LOCKSTEP_TORCH)
    return()
  endif()
  foreach(source ${arg_SOURCES})
    file(STRINGS ${source} threads REGEX "std::(jthread|thread |thread\\(|thread>|async)")
    if(threads AND NOT arg_THREADS AND NOT arg_TORCH)
      message(FATAL_ERROR "${name}: ${source} starts threads, so ThreadSanitizer must see it: add THREADS")
    endif()
  endforeach()
  set(timeout 300)  # seconds: ten times the slowest one's time alone, because other entries run beside it
  if(LOCKSTEP_SANITIZE)
    set(timeout 1500)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_options ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT arg_OPTIMIZED)
    target_link_libraries(${name} PRIVATE lockstep_test_options)
    if(arg_TORCH)
      target_precompile_headers(${name} REUSE_FROM lockstep_torch_pch_tests)
    else()
      target_precompile_headers(${name} REUSE_FROM lockstep_pch_tests)
    endif()
  endif()
  if(LOCKSTEP_SANITIZE MATCHES thread AND NOT arg_THREADS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  if(arg_TORCH)
    add_dependencies(torch_tests ${name})
    list(APPEND arg_LABELS torch)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${arg_LABELS}"
    ENVIRONMENT "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/reports/${name}.xml")  # scripts/run_tests
endfunction()

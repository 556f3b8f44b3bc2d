# What a model of a user's own is compiled against (docs/your-own-model.md):
#   cmake --install build/<preset> --component plugin --prefix DIR
# puts our headers below DIR/include/lockstep, torch's and nlohmann-json's beside them, so that a plugin is compiled with
# the ones that the worker was compiled with, and the package Lockstep for CMake's find_package.

set(LOCKSTEP_PLUGIN_FILES
  runner/base/check.h
  runner/base/file_system.h
  runner/base/json.h
  runner/base/one_line.h
  runner/base/philox.h
  runner/base/result.h
  runner/base/sha256.h
  runner/checkpoint/weights.h
  runner/config/flag_table.h
  runner/config/flag_table_builder.h
  runner/config/run_config.h
  runner/config/workload_flags.h
  runner/contract/exit_code.h
  runner/launch/launch_options.h
  runner/contract/run_folder_layout.h
  runner/data/batch_source.h
  runner/data/sampler.h
  runner/formats/pickle_zip.h
  runner/formats/tensor_file.h
  runner/kernels/dropout.h
  runner/layers/dropouts.h
  runner/layers/initial_values.h
  runner/layers/linear.h
  runner/models/adam_state_dict.h
  runner/models/registry.h
  runner/models/task.h
  runner/models/workload.h
  runner/plugin/plugin.h
  runner/tensor/named_tensor.h
  runner/tensor/parameter_group.h)
# Whose functions lockstep-worker holds for plugins, whether it calls them itself or not.
set(LOCKSTEP_PLUGIN_ROOMS base checkpoint config contract data formats kernels layers)

# A plugin that was compiled with other headers may see other classes than the worker: their digest stands in both.
set(digests)
foreach(file ${LOCKSTEP_PLUGIN_FILES})
  file(SHA256 ${CMAKE_SOURCE_DIR}/${file} digest)
  string(APPEND digests "${digest} ${file}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
endforeach()
string(SHA256 LOCKSTEP_PLUGIN_HEADERS "${digests}")
string(SUBSTRING ${LOCKSTEP_PLUGIN_HEADERS} 0 12 LOCKSTEP_PLUGIN_HEADERS)

function(lockstep_plugin_definitions file)
  set_source_files_properties(${file} PROPERTIES COMPILE_DEFINITIONS
    "LOCKSTEP_PLUGIN_VERSION=\"${PROJECT_VERSION}\";LOCKSTEP_PLUGIN_HEADERS=\"${LOCKSTEP_PLUGIN_HEADERS}\"")
endfunction()

foreach(file ${LOCKSTEP_PLUGIN_FILES})
  get_filename_component(folder ${file} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/${file} DESTINATION include/lockstep/${folder} COMPONENT plugin)
endforeach()
find_path(LOCKSTEP_NLOHMANN nlohmann/json.hpp REQUIRED)  # nlohmann-json3-dev
install(DIRECTORY ${LOCKSTEP_NLOHMANN}/nlohmann DESTINATION include/lockstep COMPONENT plugin)
install(DIRECTORY ${LOCKSTEP_LIBTORCH}/torch/include/ DESTINATION include/lockstep/torch_headers COMPONENT plugin)
configure_file(${CMAKE_SOURCE_DIR}/cmake/LockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/LockstepConfig.cmake @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/LockstepConfig.cmake ${CMAKE_BINARY_DIR}/LockstepConfigVersion.cmake
  DESTINATION lib/cmake/Lockstep COMPONENT plugin)

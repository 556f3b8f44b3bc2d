# What an image or a package takes:
#   cmake --install build/<preset> --component runner|operator|kubectl --prefix DIR
#
# runner: bin/lockstep, bin/lockstep-worker and, in lib/, the libraries that Debian does not have (LibTorch and what it
# needs of CUDA), found by the linker's own answer. operator: bin/lockstep-operator and, in agent/, what
# starts the programs of users in images that hold nothing of ours (runner/agent_folder_main.cc). kubectl: bin/kubectl-lockstep, for
# laptops. Libraries of Debian packages are left to the packages. Beside runner and operator, share/: licences, and a
# list of what is bundled (scripts/bundled); libexec/: what their Dockerfiles make the rest of an image with.

foreach(program lockstep lockstep-worker lockstep-operator)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  endif()
endforeach()

install(TARGETS lockstep COMPONENT runner)
install(TARGETS lockstep-operator COMPONENT operator)
if(TARGET lockstep-agent-folder)
  install(TARGETS lockstep DESTINATION agent/bin COMPONENT operator)
  install(PROGRAMS $<TARGET_FILE:lockstep-agent-folder> DESTINATION agent RENAME lockstep COMPONENT operator)
endif()
install(TARGETS kubectl-lockstep COMPONENT kubectl)
if(TARGET lockstep-worker)
  install(TARGETS lockstep-worker RUNTIME_DEPENDENCY_SET runner_libraries COMPONENT runner)
  install(RUNTIME_DEPENDENCY_SET runner_libraries COMPONENT runner
    POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib"
    DESTINATION lib)
  # What libtorch_cuda.so and cuDNN open by name while they run: the linker knows nothing of it.
  if(LOCKSTEP_CUDA)
    install(DIRECTORY ${LOCKSTEP_LIBTORCH}/nvidia/cudnn/lib/ DESTINATION lib COMPONENT runner
      FILES_MATCHING PATTERN "libcudnn_*.so.9")
    install(DIRECTORY ${LOCKSTEP_LIBTORCH}/nvidia/cu13/lib/ DESTINATION lib COMPONENT runner
      FILES_MATCHING PATTERN "libnvrtc.so.13" PATTERN "libnvrtc-builtins.so.13.*")
    install(FILES ${LOCKSTEP_LIBTORCH}/torch/lib/libcaffe2_nvrtc.so DESTINATION lib COMPONENT runner)
  endif()
endif()

# After the libraries are there.
set(lockstep_bundled "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/bundled \${CMAKE_INSTALL_PREFIX}")
install(CODE "${lockstep_bundled} operator ${PROJECT_VERSION} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT operator)
if(TARGET lockstep-worker)
  install(CODE "${lockstep_bundled} runner ${PROJECT_VERSION} ${LOCKSTEP_LIBTORCH} COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT runner)
endif()
foreach(component operator runner)
  install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/image_root DESTINATION libexec COMPONENT ${component})
endforeach()

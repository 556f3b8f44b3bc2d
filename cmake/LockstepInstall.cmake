# What an image or a package takes:
#   cmake --install build/<preset> --component runner|operator|kubectl --prefix DIR
#
# runner: bin/lockstep, bin/lockstep-worker and, in lib/, the libraries that Debian does not have (LibTorch and what it
# needs of CUDA), found by the linker's own answer. operator: bin/lockstep-operator. kubectl: bin/kubectl-lockstep, for
# laptops. Libraries of Debian packages are left to the packages.

foreach(program lockstep lockstep-worker lockstep-operator)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  endif()
endforeach()

install(TARGETS lockstep COMPONENT runner)
install(TARGETS lockstep-operator COMPONENT operator)
install(TARGETS kubectl-lockstep COMPONENT kubectl)
if(TARGET lockstep-worker)
  install(TARGETS lockstep-worker RUNTIME_DEPENDENCY_SET runner_libraries COMPONENT runner)
  install(RUNTIME_DEPENDENCY_SET runner_libraries COMPONENT runner
    POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib"
    DESTINATION lib)
endif()

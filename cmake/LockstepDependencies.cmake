# What comes from Debian. Each is found once, here, with the package to install named when it is missing.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json REQUIRED)   # nlohmann-json3-dev
find_package(CLI11 REQUIRED)           # libcli11-dev
find_package(yaml-cpp REQUIRED)        # libyaml-cpp-dev
find_package(ZLIB REQUIRED)            # zlib1g-dev
find_path(LOCKSTEP_GEMMI gemmi/cif.hpp REQUIRED)     # gemmi-dev (only runner/models/protein/data/gemmi_atoms.cc includes it)
find_path(LOCKSTEP_PEGTL tao/pegtl.hpp REQUIRED)     # tao-pegtl-dev (which gemmi includes)
pkg_check_modules(libjpeg REQUIRED IMPORTED_TARGET libjpeg)  # libjpeg-dev (libjpeg-turbo)
pkg_check_modules(libpng REQUIRED IMPORTED_TARGET libpng)    # libpng-dev
pkg_check_modules(libisal REQUIRED IMPORTED_TARGET libisal)  # libisal-dev
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)  # libssl-dev
find_library(LOCKSTEP_STATIC_CRYPTO libcrypto.a REQUIRED)  # libssl-dev
find_package(Boost 1.74 REQUIRED)      # libboost-dev (Asio, header-only)
find_package(cpprestsdk REQUIRED)       # libcpprest-dev (only operator/kube/cpprest_transport.cc includes it)
pkg_check_modules(prometheus_core REQUIRED IMPORTED_TARGET prometheus-cpp-core)  # prometheus-cpp-dev
pkg_check_modules(tcmalloc REQUIRED IMPORTED_TARGET libtcmalloc_minimal)  # libgoogle-perftools-dev
if(LOCKSTEP_TESTS)
  find_package(GTest REQUIRED)         # libgtest-dev, libgmock-dev
endif()

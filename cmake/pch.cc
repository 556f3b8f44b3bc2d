// Holds a precompiled header that others reuse (cmake/LibTorch.cmake, cmake/LockstepTargets.cmake).

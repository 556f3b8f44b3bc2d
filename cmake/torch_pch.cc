// Holds the precompiled torch_pch.h that every room with LibTorch reuses.

// The same for the tests with torch (cmake/LibTorch.cmake).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torch_pch.h"
